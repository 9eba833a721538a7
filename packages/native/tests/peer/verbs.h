/* The calls of the library: each command becomes one call. */
#ifndef PEER_VERBS_H
#define PEER_VERBS_H

#include "results.h"

/* The client that the field `client` names; the first one without it. */
hoplite_client client_of(const words *words);

/* The timeout of a command; no limit without one. */
double timeout_of(const words *words);

/* Runs a command that is a call, or takes or cancels a pending one. Returns false if there is no such command. */
bool run_call(const words *words);

#endif
