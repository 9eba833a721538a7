//! The TCP port of a node: whether it may listen at an address, and the address that it advertises.
//! Does not know its connections.

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use tokio::net::{TcpListener, TcpSocket};

use crate::{config::NodeConfig, error::Error, fork_safe, network::join::resolve};

/// Resolves the address to listen on, and checks that a node with these settings may listen there.
pub(super) fn checked(config: &NodeConfig, said: &str) -> Result<SocketAddr, Error> {
    let refused = |detail| Error::Listen { address: said.into(), detail };
    let listen = resolve(said).map_err(refused)?;
    let is_closed = !config.tokens.is_empty() || config.certificates.is_some();
    if listen.ip().is_loopback() || is_closed || config.no_auth {
        return Ok(listen);
    }
    Err(refused(
        "other hosts can reach it: give all nodes of the cluster the same token, or certificates \
         of one CA, or set no_auth if everybody on the network may read and write every object"
            .into(),
    ))
}

/// Takes an address; connections to it are refused until [`listen_at`], which fails if another node
/// listens there by then. `said` is the address as in the settings.
pub(super) fn bind(listen: SocketAddr, said: &str) -> Result<TcpSocket, Error> {
    let socket = if listen.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    let bound = socket.and_then(|socket| {
        // A restarted node must be able to reuse its port before the kernel drops the old
        // connections.
        socket.set_reuseaddr(true)?;
        socket.bind(listen)?;
        fork_safe::note(&socket);
        Ok(socket)
    });
    bound.map_err(|error| unusable(&error, said))
}

/// Listens at an address. Called after the steps of the start that fail at times, such as a taken
/// path of the local socket: a node that connects is then accepted, or refused and tries again, but
/// its connection is not broken.
pub(super) fn listen_at(socket: TcpSocket, said: &str) -> Result<TcpListener, Error> {
    // If this process is killed, a node that reconnects must be refused at once, not kept waiting.
    let listener = socket.listen(1024).and_then(TcpListener::into_std).map(fork_safe::raise);
    listener.and_then(TcpListener::from_std).map_err(|error| unusable(&error, said))
}

fn unusable(error: &io::Error, said: &str) -> Error {
    match error.kind() {
        io::ErrorKind::AddrInUse => Error::AddressInUse {
            address: said.into(),
            detail: "another process listens there".into(),
        },
        _ => Error::Listen { address: said.into(), detail: error.to_string() },
    }
}

/// The address to advertise of a node that listens at `bound`.
pub(super) fn advertised(
    config: &NodeConfig,
    listen: &str,
    bound: SocketAddr,
) -> Result<SocketAddr, Error> {
    let address = match &config.advertise {
        // Without a port, advertise the one listened on.
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
            detail: "other nodes can't reach this address: listen on an address of the host, or \
                     set the address to advertise"
                .into(),
        });
    }
    let port = if address.port() == 0 { bound.port() } else { address.port() };
    Ok(SocketAddr::new(address.ip(), port))
}
