//! Records why other nodes reject this one: its certificate is revoked. Does not know how that is detected.

use std::sync::Mutex;

use hoplite_proto::id::NodeId;

use crate::sync::lock;

/// The recorded reasons.
#[derive(Debug, Default)]
pub(crate) struct Barred {
    said: Mutex<Said>,
}

#[derive(Debug, Default)]
struct Said {
    /// Found in this node's own revocation list.
    here: Option<String>,
    /// Reported by a member: the last to do so that has not admitted this node since.
    by: Option<(NodeId, String)>,
}

impl Barred {
    /// Records whether this node's list contains its own certificate. Returns whether that changed.
    pub(crate) fn note_here(&self, reason: Option<String>) -> bool {
        let mut said = lock(&self.said);
        let is_news = said.here != reason;
        said.here = reason;
        is_news
    }

    /// Records that a member rejects this node's certificate as revoked. Returns whether that changed.
    pub(crate) fn note_by(&self, node: NodeId, reason: &str) -> bool {
        let by = (node, format!("certificate revoked: node {node} reports: {reason}"));
        lock(&self.said).by.replace(by.clone()) != Some(by)
    }

    /// Records that a member admitted this node.
    pub(crate) fn let_in_by(&self, node: NodeId) {
        lock(&self.said).by.take_if(|(by, _)| *by == node);
    }

    /// The reason as text; this node's own finding first.
    pub(crate) fn reason(&self) -> Option<String> {
        let said = lock(&self.said);
        said.here.clone().or_else(|| Some(said.by.as_ref()?.1.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_of_a_member_holds_until_it_admits_this_node() {
        let (barred, one, other) = (Barred::default(), NodeId(1), NodeId(2));
        assert_eq!(barred.reason(), None);
        assert!(barred.note_by(one, "no"));
        assert!(!barred.note_by(one, "no"));
        barred.let_in_by(other);
        assert!(
            barred.reason().unwrap().contains("certificate revoked: node 0000000000000001 reports")
        );
        assert!(barred.note_here(Some("here".into())));
        assert_eq!(barred.reason().unwrap(), "here");
        assert!(barred.note_here(None));
        barred.let_in_by(one);
        assert_eq!(barred.reason(), None);
    }
}
