//! Hoplite for Rust: objects in shared memory, broadcast and reduced between hosts.
//!
//! ```
//! use std::time::Duration;
//!
//! use hoplite::{ClientOptions, Node, NodeOptions, Value};
//!
//! let node = Node::start(NodeOptions { capacity: Some(64 << 20), ..NodeOptions::default() })?;
//! let client = node.client(ClientOptions::default())?;
//! let gradient = client.put(Value::array(&[1.0_f32, 2.0], &[2])?).name("gradient/1").wait()?;
//! let sum = client.reduce([&gradient], "sum").wait()?;
//! let view = client.get(&sum).timeout(Duration::from_secs(10)).wait()?;
//! assert_eq!(view.as_slice::<f32>()?, [1.0, 2.0]);
//! # Ok::<(), hoplite::Error>(())
//! ```

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod admission;
mod attachment;
mod call;
mod client;
mod error;
#[doc(hidden)]
pub mod fork;
#[doc(hidden)]
pub mod interrupt;
mod mode;
mod node;
mod options;
mod outcome;
mod pending;
mod process;
mod reference;
mod session;
mod settings;
#[doc(hidden)]
pub mod signals;
mod sockets;
mod value;
mod verbs;
mod view;

#[doc(hidden)]
pub use self::call::Verb;
pub use self::{
    call::{Call, CallFuture},
    client::{Client, ClientOptions, Location},
    error::{Error, ErrorKind, Result},
    node::Node,
    options::NodeOptions,
    pending::Pending,
    reference::Ref,
    session::{connect, init},
    value::{AXES_MAX, Element, Value, item_bytes},
    verbs::{
        create::{Buffer, Create, Seal},
        get::Get,
        into::GetInto,
        latest::Latest,
        lease::{Acquire, Lease},
        put::Put,
        reduce::Reduce,
        simple::Simple,
    },
    view::View,
};
