//! Connections by way of a third member, where two can't reach each other and it reaches both: a cable, a route or a
//! firewall may fail for one pair of hosts alone.
//!
//! ```text
//!   caller                     helper                     called
//!     handshake for Detour ----->|
//!     PassOn(called) ----------->| connects --------------->|
//!     <--------------- Admitted  |                          |
//!     handshake -----------------+------------------------->|  and so on, as if the helper were not there
//! ```
//! The helper passes bytes on, and can't read them. Who of two members begins with this is decided by each for its
//! own connections.

use std::{sync::Arc, time::Duration};

use hoplite_proto::{
    id::NodeId,
    members::Member,
    wire::{FrameKind, Greeting, Role},
};
use tokio::{io::copy_bidirectional, net::TcpStream, time::sleep};
use tracing::{debug, info};

use super::{
    certificates::Shown,
    handshake::{self, Met, called},
    shared::Network,
};
use crate::{channel::Channel, error::LinkError};

/// How many others are asked to reach a member; and one that was lost, which most likely is nowhere and is called again.
pub(crate) const HELPERS: usize = 3;
pub(crate) const HELPERS_TO_THE_LOST: usize = 1;

/// How long a helper passes on what is said by or to a member that is none any more: one that leaves sends the rest of what
/// others are receiving.
const FAREWELL: Duration = Duration::from_secs(5);

/// Calls a member, if need be by way of another one, of which so many are asked; which one that is.
///
/// # Errors
/// Why it can't be called directly.
pub(crate) async fn call(
    network: &Arc<Network>,
    member: Member,
    role: Role,
    helpers: usize,
) -> Result<(Met, Option<NodeId>), LinkError> {
    let error =
        match handshake::call(&network.identity, member.address, role, Some(member.id)).await {
            Ok(met) => return Ok((met, None)),
            Err(error) if !handshake::is_unreachable(&error) => return Err(error),
            Err(error) => error,
        };
    for helper in network.peers.helpers(member.id, helpers) {
        let called = async {
            let stream = through(network, helper, member.id).await?;
            handshake::call_over(&network.identity, stream, role, Some(member.id)).await
        };
        match called.await {
            Ok(met) => {
                info!(node = %member.id, helper = %helper.id, "is reached by way of another");
                return Ok((met, Some(helper.id)));
            }
            Err(error) => debug!(node = %member.id, helper = %helper.id, %error, "can't help"),
        }
    }
    Err(error)
}

/// A connection to a member by way of a helper; nothing has been said on it.
///
/// # Errors
/// The helper can't be reached, or can't reach the member.
pub(crate) async fn through(
    network: &Arc<Network>,
    helper: Member,
    to: NodeId,
) -> Result<TcpStream, LinkError> {
    let met =
        handshake::call(&network.identity, helper.address, Role::Detour, Some(helper.id)).await?;
    handshake::ask_to_pass_on(met.channel, to).await
}

/// Helps: connects a member that has called to the one that it means, until one of them has had enough.
///
/// # Errors
/// The caller did not say which member it means, or hung up.
pub(crate) async fn pass_on(
    network: &Arc<Network>,
    mut channel: Channel,
    from: NodeId,
    shown: Option<&Shown>,
) -> Result<(), LinkError> {
    let to = called::asked_to_pass_on(&mut channel).await?;
    let connected = match network.peers.address(to).filter(|_| network.peers.is_member(from)) {
        Some(address) => handshake::connect(address).await,
        None => Err(LinkError::NotMember(to)),
    };
    let mut onward = match connected {
        Ok(onward) => onward,
        Err(error) => {
            let said = format!("node {to} can't be reached from here either: {error}");
            return channel.say(FrameKind::Greeting, &Greeting::Refused(said)).await;
        }
    };
    channel.say(FrameKind::Greeting, &Greeting::Admitted).await?;
    let mut stream = channel.stream;
    debug!(%from, %to, "passes on");
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
        () = network.identity.key.barred(shown) => Ok(()),
    }
}

/// Ends when a member answers directly, of which it is asked every so often.
pub(crate) async fn is_needless(network: &Arc<Network>, member: Member, pause: Duration) {
    loop {
        sleep(pause).await;
        // It carries nothing: the handshake shows that the member itself answers, not only its kernel.
        let called =
            handshake::call(&network.identity, member.address, Role::Payload, Some(member.id))
                .await;
        if called.is_ok() {
            return;
        }
    }
}
