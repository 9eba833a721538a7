//! How a node finds its cluster: by members that it is told of, when it starts and for as long as it lives.

use std::{
    collections::HashMap,
    io,
    net::{SocketAddr, ToSocketAddrs},
    sync::Arc,
    time::{Duration, Instant},
};

use hoplite_proto::{id::NodeId, node::Event, wire::Role};
use tokio::time::timeout;
use tracing::debug;

use super::{handshake, shared::Network};
use crate::{engine::task::Task, error::Error};

/// How long members that are named but do not listen yet are called again: two nodes that a script starts together.
const JOIN_PATIENCE: Duration = Duration::from_secs(3);

/// How long a member that has let this node in may take to tell it the others.
const TOLD_PATIENCE: Duration = Duration::from_secs(2);

/// Between two looks at the named members that are no members yet; twice as long each time, up to the last.
const SEEK_FIRST: Duration = Duration::from_secs(1);
const SEEK_LAST: Duration = Duration::from_secs(10);

/// Calls the named members until one lets this node in.
///
/// # Errors
/// [`Error::Join`] if none does.
pub(crate) async fn join(network: &Arc<Network>, seeds: &[String]) -> Result<(), Error> {
    let me = network.identity.member.address;
    let until = Instant::now() + JOIN_PATIENCE;
    let (mut is_met, mut failures) = (false, Vec::new());
    // Those that do not listen yet are called again only while no other has answered.
    loop {
        failures.clear();
        let mut may_come = false;
        for seed in seeds {
            let error = match resolve(seed) {
                Ok(address) if address == me => continue,
                Ok(address) => {
                    match handshake::call(&network.identity, address, Role::Meet, None).await {
                        Ok(connection) => {
                            network.facts.tell(Event::PeerUp { member: connection.member });
                            is_met = true;
                            continue;
                        }
                        Err(error) => {
                            may_come |= handshake::is_refused(&error);
                            error.to_string()
                        }
                    }
                }
                Err(said) => said,
            };
            failures.push(format!("{seed}: {error}"));
        }
        if is_met || !may_come || Instant::now() >= until {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    if !is_met && !failures.is_empty() {
        return Err(Error::Join(failures.join("; ")));
    }
    // The members that the seed knows decide who owns which name: without them the first claims could go astray.
    if is_met && timeout(TOLD_PATIENCE, network.control.heard.wait()).await.is_err() {
        let said = format!(
            "its members can't reach this node at {me}: advertise an address that they can reach"
        );
        return Err(Error::Join(said));
    }
    Ok(())
}

/// Calls named members that are none yet, for ever: nodes that start together may each have found others first, and be
/// clusters of their own; and a named member may come later, or again.
pub(crate) async fn seek(network: Arc<Network>, seeds: Vec<String>) {
    let is_known = |address, id| network.peers.is_known(&network.identity.member, address, id);
    let mut pause = SEEK_FIRST;
    // Who was found at an address that is not the one it advertises; this node among them.
    let mut found: HashMap<SocketAddr, NodeId> = HashMap::new();
    loop {
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(SEEK_LAST);
        for seed in &seeds {
            // A name may stand for another address by now. Its resolver may take long.
            let said = seed.clone();
            let resolving = network.tasks.spawn_blocking(Task::Seek, move || resolve(&said));
            let Ok(Some(Ok(address))) = resolving.await else { continue };
            if is_known(address, found.get(&address).copied()) {
                continue;
            }
            match handshake::call(&network.identity, address, Role::Meet, None).await {
                Ok(met) => {
                    found.insert(address, met.member.id);
                    if !is_known(met.member.address, Some(met.member.id)) {
                        // Both sides connect anew.
                        network.facts.tell(Event::PeerUp { member: met.member });
                    }
                }
                Err(error) => debug!(seed, %error, "is not there yet"),
            }
        }
    }
}

/// The first address of "host:port".
///
/// # Errors
/// What is wrong with it, in words.
pub(crate) fn resolve(said: &str) -> Result<SocketAddr, String> {
    let mut all = said.to_socket_addrs().map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => "it is no address; write it as host:port".to_string(),
        _ => format!("no host of that name is known here ({error})"),
    })?;
    all.next().ok_or_else(|| "the host has no address".to_string())
}
