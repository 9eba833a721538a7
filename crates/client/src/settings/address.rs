//! Addresses of nodes: their syntax, and the address on which a node listens.

use std::{
    fs,
    net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket},
    path::Path,
};

use crate::error::{Error, ErrorKind, Result};

/// Default of a node with clustering configured: a free port that only this host can reach.
const LOOPBACK: &str = "127.0.0.1:0";

/// Where the kernel lists network interfaces.
const INTERFACES: &str = "/sys/class/net";

/// Checks `host:port`, with an IPv6 address in brackets.
///
/// # Errors
/// `InvalidArgument`.
pub(crate) fn check(what: &str, text: &str) -> Result<()> {
    let (host, port) = text.rsplit_once(':').unwrap_or_default();
    let is_bracketed = host.starts_with('[') && host.ends_with(']');
    if host.contains(':') && !is_bracketed {
        let message = format!(
            "{what} {text:?} is ambiguous: write an IPv6 address in brackets, such as \"[::1]:7420\""
        );
        return Err(Error::argument(message));
    }
    let is_valid = !matches!(host, "" | "[]")
        && !text.contains('/')
        && port.bytes().all(|byte| byte.is_ascii_digit())
        && port.parse::<u16>().is_ok();
    if is_valid {
        return Ok(());
    }
    let message = format!(
        "{what} {text:?} is not an address: write \"host:port\", such as \"10.0.0.1:7420\" or \"[::1]:7420\""
    );
    Err(Error::argument(message))
}

/// Checks an address on which to listen.
///
/// # Errors
/// `InvalidArgument` if it is not valid, names an interface, or is link-local and not advertised otherwise.
pub(crate) fn checked_listen(text: &str, is_advertised: bool) -> Result<String> {
    check("listen", text)?;
    let host = host_of(text);
    if is_interface(host) {
        let message = format!(
            "listen {text:?} names a network interface, which only Python resolves: use its address"
        );
        return Err(Error::argument(message));
    }
    let resolved = scoped("listen", text)?;
    let is_link_local = match host.split('%').next().map(str::parse) {
        Some(Ok(IpAddr::V4(ip))) => ip.is_link_local(),
        Some(Ok(IpAddr::V6(ip))) => ip.is_unicast_link_local(),
        _ => false,
    };
    if is_link_local && !is_advertised {
        let message = format!(
            "listen {text:?} is a link-local address, which is not valid on other hosts: listen on another address of \
             the interface, or set advertise"
        );
        return Err(Error::argument(message));
    }
    Ok(resolved)
}

/// Replaces the interface name in the zone of an IPv6 address by its number. Other addresses stay unchanged.
///
/// # Errors
/// `InvalidArgument` if the address is not valid or the interface does not exist.
pub(crate) fn scoped(what: &str, text: &str) -> Result<String> {
    check(what, text)?;
    let Some((ip, rest)) = text.split_once('%') else { return Ok(text.into()) };
    let (zone, port) = rest.split_once("]:").unwrap_or_default();
    if zone.parse::<u32>().is_ok() {
        return Ok(text.into());
    }
    let number = is_interface(zone)
        .then(|| fs::read_to_string(Path::new(INTERFACES).join(zone).join("ifindex")).ok())
        .flatten();
    let number = number.ok_or_else(|| {
        Error::argument(format!("{what} {text:?}: this host has no interface {zone}: name another"))
    })?;
    Ok(format!("{ip}%{}]:{port}", number.trim()))
}

/// Port 0 on the interface that leads to the nodes to join, or on loopback if there are none. A name of this host may
/// resolve to loopback: the first seed on another interface takes precedence.
///
/// # Errors
/// `JoinError` if no address of the nodes to join can be resolved or reached.
pub(crate) fn towards(seeds: &[String]) -> Result<String> {
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    for seed in seeds {
        match own_address(seed) {
            Ok(own) => found.push(own),
            Err(error) => problems.push(format!("{seed}: {error}")),
        }
    }
    let best = found.iter().find(|own| !own.is_loopback()).or(found.first());
    match best {
        Some(own) => Ok(SocketAddr::new(*own, 0).to_string()),
        None if seeds.is_empty() => Ok(LOOPBACK.into()),
        None => {
            let message = format!(
                "could not join the cluster: {}: check the addresses in join",
                problems.join("; ")
            );
            Err(Error::new(ErrorKind::JoinError, message))
        }
    }
}

/// Whether no other host can reach an address. The node rejects an address that does not resolve.
pub(crate) fn is_loopback(text: &str) -> bool {
    match host_of(text).parse::<IpAddr>() {
        Ok(ip) => ip.is_loopback(),
        Err(_) => text
            .to_socket_addrs()
            .map_or(true, |mut found| found.all(|address| address.ip().is_loopback())),
    }
}

/// The own address from which the kernel reaches a node. No packet is sent.
fn own_address(seed: &str) -> std::io::Result<IpAddr> {
    let mut last = std::io::Error::other("its name has no address");
    for target in seed.to_socket_addrs()? {
        let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let own = UdpSocket::bind(any).and_then(|probe| {
            probe.connect(target)?;
            probe.local_addr()
        });
        match own {
            Ok(own) => return Ok(own.ip()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').unwrap_or_default().0;
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

fn is_interface(name: &str) -> bool {
    !name.is_empty() && !name.contains('/') && Path::new(INTERFACES).join(name).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked() {
        for valid in ["10.0.0.1:7420", "[::1]:7420", "localhost:0", "[fe80::1%2]:7420"] {
            assert_eq!(scoped("join", valid).unwrap(), valid);
        }
        for wrong in [
            "",
            "host",
            ":7420",
            "[]:7420",
            "::1:7420",
            "a:b",
            "a:65536",
            "a:+1",
            "http://a:1",
            "a: 1",
        ] {
            assert!(check("join", wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn interfaces_have_numbers() {
        assert_eq!(scoped("join", "[fe80::1%lo]:7420").unwrap(), "[fe80::1%1]:7420");
        let missing = scoped("join", "[fe80::1%nowhere]:7420").unwrap_err().to_string();
        assert!(missing.contains("no interface nowhere"), "{missing}");
        let named = checked_listen("lo:7420", false).unwrap_err().to_string();
        assert!(named.contains("names a network interface"), "{named}");
        assert!(checked_listen("169.254.1.1:7420", false).is_err());
        assert!(checked_listen("169.254.1.1:7420", true).is_ok());
    }

    #[test]
    fn loopback_is_the_default_and_is_detected() {
        assert_eq!(towards(&[]).unwrap(), LOOPBACK);
        assert_eq!(towards(&["127.0.0.1:7420".into()]).unwrap(), "127.0.0.1:0");
        let unknown = towards(&["no-such-host.invalid:1".into()]).unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::JoinError);
        let shown = ["127.0.0.1:1", "[::1]:1", "0.0.0.0:1", "10.0.0.1:1"].map(is_loopback);
        assert_eq!(shown, [true, true, false, false]);
    }
}
