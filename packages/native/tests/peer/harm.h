/* What a program may do to harm others: forks, leaked handles, limits, signals. */
#ifndef PEER_HARM_H
#define PEER_HARM_H

#include <stdbool.h>

#include "words.h"

/* Runs a command of this kind. Returns false if there is no such command. */
bool run_harm(const words *words);

#endif
