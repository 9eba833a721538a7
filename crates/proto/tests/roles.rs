//! The table of docs/security.md is that of the code: each kind of message, and which members may say it.

use hoplite_proto::node::Kind;

const PAGE: &str = include_str!("../../../docs/security.md");

#[test]
fn the_page_says_of_each_message_who_may_say_it() {
    let section = PAGE.split("\n## ").find(|section| section.starts_with("Who may say what\n"));
    let rows: Vec<&str> = section.unwrap().lines().filter(|line| line.starts_with("| `")).collect();
    assert_eq!(rows.len(), Kind::ALL.len());
    for (row, kind) in rows.iter().zip(Kind::ALL) {
        let begin = format!("| `{kind:?}` | {} |", kind.speaker().words());
        assert!(row.starts_with(&begin), "{row}\nis to begin with\n{begin}");
    }
}
