//! The port of a node: whether the node may listen at an address, and which address others are told. Does not know who calls.

use std::net::{IpAddr, SocketAddr};

use tokio::net::{TcpListener, TcpSocket};

use crate::{config::NodeConfig, error::Error, fork_safe, network::join::resolve};

/// The address to listen on, if a node with these settings may.
pub(super) fn checked(config: &NodeConfig, said: &str) -> Result<SocketAddr, Error> {
    let refused = |detail| Error::Listen { address: said.into(), detail };
    let listen = resolve(said).map_err(refused)?;
    let is_closed = !config.tokens.is_empty() || config.certificates.is_some();
    if listen.ip().is_loopback() || is_closed || config.insecure {
        return Ok(listen);
    }
    Err(refused(
        "other hosts can reach it: give all nodes of the cluster the same token, or certificates of one CA, or say \
         insecure if everybody on the network may read and write every object"
            .into(),
    ))
}

/// Listens at an address; `said` is how the settings write it.
pub(super) fn bind(listen: SocketAddr, said: &str) -> Result<TcpListener, Error> {
    let socket = if listen.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    let bound = socket.and_then(|socket| {
        // A node that restarts on its port must not wait for the kernel to forget the old connections.
        socket.set_reuseaddr(true)?;
        socket.bind(listen)?;
        // A node that calls again after this process was killed is to be refused, not kept waiting.
        TcpListener::from_std(fork_safe::raise(socket.listen(1024)?.into_std()?))
    });
    bound.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => Error::AddressInUse {
            address: said.into(),
            detail: "another process listens there".into(),
        },
        _ => Error::Listen { address: said.into(), detail: error.to_string() },
    })
}

/// The address that other nodes are told, of one that listens at `bound`.
pub(super) fn advertised(
    config: &NodeConfig,
    listen: &str,
    bound: SocketAddr,
) -> Result<SocketAddr, Error> {
    let address = match &config.advertise {
        // A port that is not said is the one that is listened on.
        Some(said) => match said.parse::<IpAddr>() {
            Ok(ip) => SocketAddr::new(ip, bound.port()),
            Err(_) => resolve(said)
                .map_err(|detail| Error::Advertise { address: said.clone(), detail })?,
        },
        None => bound,
    };
    if address.ip().is_unspecified() {
        return Err(Error::Listen {
            address: listen.into(),
            detail: "others can't reach a node at this address: listen on one of the host's addresses, or say which \
                     one to advertise"
                .into(),
        });
    }
    let port = if address.port() == 0 { bound.port() } else { address.port() };
    Ok(SocketAddr::new(address.ip(), port))
}
