//! Joins the cluster: contacts the configured members at the start of the node and, while it runs,
//! those that are not members yet.

use std::{
    collections::HashMap,
    io,
    net::{SocketAddr, ToSocketAddrs},
    sync::Arc,
    time::{Duration, Instant},
    vec,
};

use hoplite_proto::{
    id::NodeId,
    node::Event,
    wire::{Role, WireError},
};
use tokio::time::timeout;
use tracing::debug;

use super::{
    handshake::{self, Identity},
    shared::Network,
};
use crate::{
    engine::tasks::Task,
    error::{Error, LinkError},
    repeats::log_once,
};

/// How long to retry configured members that do not listen yet, such as two nodes that one script
/// starts together.
const JOIN_TIMEOUT: Duration = Duration::from_secs(3);

/// Timeout for the first control message, with the other members, from a member that admitted this
/// node.
const MEMBERS_TIMEOUT: Duration = Duration::from_secs(2);

/// First and last interval between attempts to reach configured addresses that are not members yet;
/// it doubles each time.
const SEED_RETRY_FIRST: Duration = Duration::from_secs(1);
const SEED_RETRY_LAST: Duration = Duration::from_secs(10);

/// Contacts the configured members until one admits this node.
///
/// # Errors
/// [`Error::Join`] if none admits it.
pub(crate) async fn join(network: &Arc<Network>, seeds: &[String]) -> Result<(), Error> {
    let me = network.identity.member.address;
    let until = Instant::now() + JOIN_TIMEOUT;
    let (mut is_met, mut failures) = (false, Vec::new());
    // Retry members that do not listen yet only while no other member has replied.
    loop {
        failures.clear();
        let mut may_come = false;
        for seed in seeds {
            // Local programs wait for this. `retry_seeds` contacts the others.
            if is_met && Instant::now() >= until {
                break;
            }
            let addresses = match resolve_all(seed) {
                Ok(addresses) => addresses,
                Err(said) => {
                    failures.push(format!("{seed}: {said}"));
                    continue;
                }
            };
            for address in addresses.filter(|address| *address != me) {
                match handshake::initiate(&network.identity, address, Role::Join, None).await {
                    Ok(connection) => {
                        network.events.send(Event::PeerUp { member: connection.member });
                        is_met = true;
                        // The other nodes of the name are members of the same cluster, or are met
                        // later.
                        break;
                    }
                    Err(error) => {
                        may_come |= handshake::is_refused(&error);
                        log_failure(seed, &error);
                        failures.push(describe(seed, &error));
                    }
                }
            }
        }
        // A node that has joined this one in the meantime must not lose it at once.
        is_met |= network.peers.has_members();
        if is_met || !may_come || Instant::now() >= until {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    if !is_met && !failures.is_empty() {
        return Err(Error::Join(failures.join("; ")));
    }
    // The full membership determines the owner of each name: without it, the first claims could
    // reach a wrong node.
    if is_met && timeout(MEMBERS_TIMEOUT, network.control.heard.wait()).await.is_err() {
        let said = format!(
            "its members can't reach this node at {me}: advertise an address that they can reach"
        );
        return Err(Error::Join(said));
    }
    Ok(())
}

/// Why an address did not admit this node.
fn describe(seed: &str, error: &LinkError) -> String {
    if !handshake::is_refused(error) {
        return format!("{seed}: {error}");
    }
    format!("no node listens at {seed}: check the address, and that its node runs ({error})")
}

/// Contacts configured addresses that are not members yet, until the node ends. Nodes that start
/// together may first find other nodes and form separate clusters, and a configured member may
/// start late. Once the cluster has lost a member, only nodes of this cluster are joined
/// ([`hoplite_proto::cluster_id`]).
pub(crate) async fn retry_seeds(network: Arc<Network>, seeds: Vec<String>) {
    let is_known = |address, id| network.peers.is_known(&network.identity.member, address, id);
    let mut pause = SEED_RETRY_FIRST;
    // The node found at each address that differs from its advertised address. This node may be
    // among them.
    let mut found: HashMap<SocketAddr, NodeId> = HashMap::new();
    loop {
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(SEED_RETRY_LAST);
        for seed in &seeds {
            // A name may resolve to other addresses by now. The resolver may be slow.
            let said = seed.clone();
            let resolving =
                network.tasks.spawn_blocking(Task::SeedRetry, move || resolve_all(&said));
            let Ok(Some(Ok(addresses))) = resolving.await else { continue };
            for address in addresses {
                if is_known(address, found.get(&address).copied()) {
                    continue;
                }
                match handshake::initiate(&network.identity, address, Role::Join, None).await {
                    Ok(met) => {
                        found.insert(address, met.member.id);
                        if !is_known(met.member.address, Some(met.member.id)) {
                            // Both sides open new connections.
                            network.events.send(Event::PeerUp { member: met.member });
                        }
                    }
                    Err(error) => log_failure(seed, &error),
                }
            }
        }
    }
}

/// Logs why a configured address could not be joined; at debug if a node of this cluster may listen
/// there later.
fn log_failure(seed: &str, error: &LinkError) {
    if let LinkError::OtherCluster { node, .. } = error {
        log_once!(warn, node, seed, %error, "did not join another cluster");
    } else if let LinkError::Wire(WireError::OtherVersion { .. }) = error {
        log_once!(warn, seed, seed, %error, "did not join a node of another version");
    } else {
        debug!(seed, %error, "configured member not reachable yet");
    }
}

/// Performs the handshake with a node at an address, without joining its cluster. Returns the
/// node's id.
///
/// # Errors
/// The text describes why that node would not admit a node of this identity.
pub(crate) async fn check(identity: &Identity, said: &str) -> Result<NodeId, String> {
    let mut failure = "the host name has no address".into();
    for address in resolve_all(said)? {
        // A payload connection adds no member.
        match handshake::initiate(identity, address, Role::Payload, None).await {
            Ok(met) => return Ok(met.member.id),
            Err(error) => failure = error.to_string(),
        }
    }
    Err(failure)
}

/// Resolves the first address of "host:port".
///
/// # Errors
/// The text describes the problem.
pub(crate) fn resolve(said: &str) -> Result<SocketAddr, String> {
    resolve_all(said)?.next().ok_or_else(|| "the host name has no address".to_string())
}

/// Resolves all addresses of "host:port": a name can be that of several nodes. Resolvers often
/// return this host's own address first.
fn resolve_all(said: &str) -> Result<vec::IntoIter<SocketAddr>, String> {
    said.to_socket_addrs().map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => "not a valid address: write it as host:port".to_string(),
        _ => format!("can't resolve the host name ({error})"),
    })
}
