//! Relayed connections: if two members can't reach each other, a third member that reaches both
//! forwards their bytes. A cable, a route or a firewall may fail for one pair of hosts alone.
//!
//! ```text
//!   initiator                  relay                      acceptor
//!     handshake for Detour ----->|
//!     PassOn(acceptor) --------->| connects --------------->|
//!     <--------------- Admitted  |                          |
//!     handshake -----------------+------------------------->|  and so on, as without a relay
//! ```
//! The relay forwards bytes that it can't decrypt. Each of the two members decides for its own
//! connections whether to use a relay.

use std::{sync::Arc, time::Duration};

use hoplite_proto::{
    id::NodeId,
    members::Member,
    wire::{FrameKind, Greeting, Role},
};
use tokio::{io::copy_bidirectional, net::TcpStream, time::sleep};
use tracing::debug;

use super::{
    certificates::PeerCertificate,
    handshake::{self, PeerConnection, acceptor},
    shared::Network,
};
use crate::{channel::Channel, error::LinkError, repeats::log_once};

/// Number of relays to try for a member, and for a lost member, which is most likely down and is
/// retried anyway.
pub(crate) const HELPERS: usize = 3;
pub(crate) const HELPERS_TO_FAILED: usize = 1;

/// How long a relay continues after one side stops being a member: a leaving node sends the rest of
/// its transfers.
const FAREWELL: Duration = Duration::from_secs(5);

/// Connects to a member, through up to `helpers` relays in turn if it can't be reached directly.
/// Also returns the relay used.
///
/// # Errors
/// The error of the direct connection.
pub(crate) async fn call(
    network: &Arc<Network>,
    member: Member,
    role: Role,
    helpers: usize,
) -> Result<(PeerConnection, Option<NodeId>), LinkError> {
    let error =
        match handshake::initiate(&network.identity, member.address, role, Some(member.id)).await {
            Ok(met) => return Ok((met, None)),
            Err(error) if !handshake::is_unreachable(&error) => return Err(error),
            Err(error) => error,
        };
    for helper in network.peers.relay_candidates(member.id, helpers) {
        let called = async {
            let stream = through(network, helper, member.id).await?;
            handshake::initiate_over(&network.identity, stream, role, Some(member.id)).await
        };
        match called.await {
            Ok(met) => {
                let cause = format!("{} {}", member.id, helper.id);
                log_once!(
                    info, cause, node = %member.id, helper = %helper.id,
                    "a member is reached through a relay"
                );
                return Ok((met, Some(helper.id)));
            }
            Err(error) => {
                debug!(
                    node = %member.id, helper = %helper.id, %error,
                    "a relay can't reach a member"
                )
            }
        }
    }
    Err(error)
}

/// Opens a connection to a member through a relay. Nothing has been sent on it yet.
///
/// # Errors
/// The relay can't be reached, or can't reach the member.
pub(crate) async fn through(
    network: &Arc<Network>,
    helper: Member,
    to: NodeId,
) -> Result<TcpStream, LinkError> {
    let met = handshake::initiate(&network.identity, helper.address, Role::Relay, Some(helper.id))
        .await?;
    handshake::request_relay(met.channel, to).await
}

/// Serves as a relay: forwards bytes between an initiator and a member until one of them closes.
///
/// # Errors
/// The initiator did not name a member, or closed the connection.
pub(crate) async fn relay(
    network: &Arc<Network>,
    mut channel: Channel,
    from: NodeId,
    shown: Option<&PeerCertificate>,
) -> Result<(), LinkError> {
    let to = acceptor::read_relay_request(&mut channel).await?;
    let connected = match network.peers.address(to).filter(|_| network.peers.is_member(from)) {
        Some(address) => handshake::connect(address).await,
        None => Err(LinkError::NotMember(to)),
    };
    let mut onward = match connected {
        Ok(onward) => onward,
        Err(error) => {
            let said = format!("the relay can't reach node {to} either: {error}");
            return channel.send_body(FrameKind::Greeting, &Greeting::Refused(said)).await;
        }
    };
    channel.send_body(FrameKind::Greeting, &Greeting::Admitted).await?;
    let mut stream = channel.stream;
    debug!(%from, %to, "relaying");
    let passing = copy_bidirectional(&mut stream, &mut onward);
    let one_is_gone = async {
        tokio::select! {
            () = network.peers.gone(from) => {}
            () = network.peers.gone(to) => {}
        }
        sleep(FAREWELL).await;
    };
    tokio::select! {
        passed = passing => passed.map(|_| ()).map_err(LinkError::from),
        () = one_is_gone => Ok(()),
        () = network.identity.key.wait_until_revoked(shown) => Ok(()),
    }
}

/// Completes when a member replies directly, which is tested once per `pause`.
pub(crate) async fn is_needless(network: &Arc<Network>, member: Member, pause: Duration) {
    loop {
        sleep(pause).await;
        // The connection carries no payload: the handshake proves that the member itself replies,
        // not only its kernel.
        let called =
            handshake::initiate(&network.identity, member.address, Role::Payload, Some(member.id))
                .await;
        if called.is_ok() {
            return;
        }
    }
}
