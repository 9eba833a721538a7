//! Nodes for tests, each with a directory of its own for its socket.
#![allow(dead_code)]

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use hoplite::{Client, ClientOptions, Node, NodeOptions};

/// Longer than anything here takes; a test that waits this long fails.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// A directory that is removed with its contents.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NUMBERS: AtomicU32 = AtomicU32::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let name = format!("hoplite-client-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Options of a node with a socket here.
    pub(crate) fn options(&self) -> NodeOptions {
        let socket = Some(self.0.join("node.sock"));
        NodeOptions { socket, capacity: Some(64 << 20), ..NodeOptions::default() }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A node and a client in this process. Dropped in this order.
pub(crate) struct Embedded {
    pub(crate) client: Client,
    pub(crate) node: Node,
    pub(crate) folder: Folder,
}

impl Embedded {
    pub(crate) fn new() -> Self {
        Self::with(|options| options)
    }

    pub(crate) fn with(change: impl FnOnce(NodeOptions) -> NodeOptions) -> Self {
        let folder = Folder::new();
        let node = Node::start(change(folder.options())).unwrap();
        let client = node.client(ClientOptions::default()).unwrap();
        Self { client, node, folder }
    }

    /// The address of its socket.
    pub(crate) fn socket(&self) -> String {
        format!("unix:{}", self.node.socket().unwrap().display())
    }
}

/// Several nodes of one cluster, in this process.
pub(crate) fn cluster(nodes: usize) -> Vec<Embedded> {
    let mut all: Vec<Embedded> = Vec::new();
    for _ in 0..nodes {
        let join = all.first().map(|first| vec![first.node.address().unwrap()]);
        all.push(Embedded::with(|options| NodeOptions {
            listen: Some("127.0.0.1:0".into()),
            join,
            no_auth: Some(true),
            ..options
        }));
    }
    all
}
