//! Why other nodes do not let this one in any more: its certificate is revoked. Does not know how that is found out.

use std::sync::Mutex;

use hoplite_proto::id::NodeId;

use crate::sync::lock;

/// What is known of it.
#[derive(Debug, Default)]
pub(crate) struct Barred {
    said: Mutex<Said>,
}

#[derive(Debug, Default)]
struct Said {
    /// By the list of this node itself.
    here: Option<String>,
    /// By a member, the last of those that said so and have not let this node in since.
    by: Option<(NodeId, String)>,
}

impl Barred {
    /// Whether the list of this node names its own certificate. Returns whether that is news.
    pub(crate) fn note_here(&self, reason: Option<String>) -> bool {
        let mut said = lock(&self.said);
        let is_news = said.here != reason;
        said.here = reason;
        is_news
    }

    /// A member says that the certificate of this node is revoked. Returns whether that is news.
    pub(crate) fn note_by(&self, node: NodeId, reason: &str) -> bool {
        let by = (node, format!("certificate revoked: so says node {node}: {reason}"));
        lock(&self.said).by.replace(by.clone()) != Some(by)
    }

    /// A member has let this node in.
    pub(crate) fn let_in_by(&self, node: NodeId) {
        lock(&self.said).by.take_if(|(by, _)| *by == node);
    }

    /// Why, in words: what this node found itself before what others say.
    pub(crate) fn reason(&self) -> Option<String> {
        let said = lock(&self.said);
        said.here.clone().or_else(|| Some(said.by.as_ref()?.1.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_member_says_holds_until_it_lets_this_node_in() {
        let (barred, one, other) = (Barred::default(), NodeId(1), NodeId(2));
        assert_eq!(barred.reason(), None);
        assert!(barred.note_by(one, "no"));
        assert!(!barred.note_by(one, "no"));
        barred.let_in_by(other);
        assert!(barred.reason().unwrap().contains("certificate revoked: so says node"));
        assert!(barred.note_here(Some("here".into())));
        assert_eq!(barred.reason().unwrap(), "here");
        assert!(barred.note_here(None));
        barred.let_in_by(one);
        assert_eq!(barred.reason(), None);
    }
}
