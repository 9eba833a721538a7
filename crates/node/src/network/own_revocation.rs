//! Records why other nodes reject this one: its certificate is revoked. Does not know how that is
//! detected.

use std::sync::Mutex;

use hoplite_proto::id::NodeId;

use crate::sync::lock;

/// The recorded reasons.
#[derive(Debug, Default)]
pub(crate) struct OwnRevocation {
    said: Mutex<RevocationReports>,
}

#[derive(Debug, Default)]
struct RevocationReports {
    /// Found in this node's own revocation list.
    here: Option<String>,
    /// Reported by a member: the last to do so that has not admitted this node since.
    by: Option<(NodeId, String)>,
}

impl OwnRevocation {
    /// Records whether this node's list contains its own certificate. Returns whether that changed.
    pub(crate) fn note_here(&self, reason: Option<String>) -> bool {
        let mut said = lock(&self.said);
        let is_news = said.here != reason;
        said.here = reason;
        is_news
    }

    /// Records that a member rejects this node's certificate as revoked. Returns whether that
    /// changed.
    pub(crate) fn note_by(&self, node: NodeId, reason: &str) -> bool {
        let by = (node, format!("certificate revoked: node {node} reports: {reason}"));
        lock(&self.said).by.replace(by.clone()) != Some(by)
    }

    /// Records that a member admitted this node.
    pub(crate) fn accepted_by(&self, node: NodeId) {
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
        let (wait_until_revoked, one, other) = (OwnRevocation::default(), NodeId(1), NodeId(2));
        assert_eq!(wait_until_revoked.reason(), None);
        assert!(wait_until_revoked.note_by(one, "no"));
        assert!(!wait_until_revoked.note_by(one, "no"));
        wait_until_revoked.accepted_by(other);
        assert!(
            wait_until_revoked
                .reason()
                .unwrap()
                .contains("certificate revoked: node 0000000000000001 reports")
        );
        assert!(wait_until_revoked.note_here(Some("here".into())));
        assert_eq!(wait_until_revoked.reason().unwrap(), "here");
        assert!(wait_until_revoked.note_here(None));
        wait_until_revoked.accepted_by(one);
        assert_eq!(wait_until_revoked.reason(), None);
    }
}
