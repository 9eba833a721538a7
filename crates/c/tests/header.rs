//! The committed `hoplite.h` is the one that cbindgen generates from this crate.
//!
//! `HOPLITE_HEADER=write cargo test -p hoplite-c --test header` writes it.

use std::{collections::HashMap, fs, path::Path};

use cbindgen::{
    Builder, Config, DocumentationStyle, EnumConfig, ExportConfig, FunctionConfig, Language,
    Layout, RenameRule, SortKey, Style,
};

/// Files with declarations, in the order of the header.
const SOURCES: [&str; 11] = [
    "code.rs",
    "values.rs",
    "options.rs",
    "about.rs",
    "node.rs",
    "client.rs",
    "making.rs",
    "getting.rs",
    "lifetimes.rs",
    "asynchronous.rs",
    "pending.rs",
];

/// Types of the header, by their names in Rust.
const TYPES: [&str; 20] = [
    "Array",
    "Buffer",
    "Callback",
    "Client",
    "ClientOptions",
    "Code",
    "CreateOptions",
    "GetOptions",
    "Lease",
    "Location",
    "Locations",
    "Node",
    "NodeInfo",
    "NodeOptions",
    "Pending",
    "PutOptions",
    "Queue",
    "ReduceOptions",
    "Ref",
    "Refs",
];

const OPENING: &str = include_str!("opening.h");

#[test]
fn the_committed_header_is_the_generated_one() {
    let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = crate_root.join("../../packages/native/include/hoplite/hoplite.h");
    let generated = generate(crate_root);
    if std::env::var("HOPLITE_HEADER").is_ok_and(|action| action == "write") {
        fs::write(&path, &generated).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == generated,
        "{} is not up to date: run `HOPLITE_HEADER=write cargo test -p hoplite-c --test header`",
        path.display()
    );
}

fn generate(crate_root: &Path) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut numbers = version.split('.');
    let opening = ["MAJOR", "MINOR", "PATCH"]
        .iter()
        .fold(OPENING.replace("@VERSION@", version), |text, part| {
            text.replace(&format!("@{part}@"), numbers.next().unwrap())
        });
    let types = TYPES.iter().chain(&["Text", "View"]);
    let rename: HashMap<String, String> = types
        .map(|name| (name.to_string(), format!("hoplite_{}", snake_case(name))))
        .chain(
            [("REF_BYTES", "HOPLITE_REF_BYTES"), ("Flag", "bool")]
                .map(|(name, to)| (name.into(), to.into())),
        )
        .collect();
    let config = Config {
        language: Language::C,
        cpp_compat: true,
        include_guard: Some("HOPLITE_H".to_owned()),
        no_includes: true,
        after_includes: Some(opening),
        style: Style::Type,
        documentation_style: DocumentationStyle::Doxy,
        sort_by: SortKey::None,
        usize_is_size_t: true,
        line_length: 100,
        tab_width: 4,
        export: ExportConfig { rename, ..ExportConfig::default() },
        function: FunctionConfig { args: Layout::Auto, ..FunctionConfig::default() },
        enumeration: EnumConfig {
            rename_variants: RenameRule::ScreamingSnakeCase,
            ..EnumConfig::default()
        },
        ..Config::default()
    };
    let builder = SOURCES
        .iter()
        .chain(&["queue.rs"])
        .fold(Builder::new().with_config(config), |builder, file| {
            builder.with_src(crate_root.join("src").join(file))
        });
    let mut text = Vec::new();
    builder.generate().unwrap().write(&mut text);
    tidy(&String::from_utf8(text).unwrap())
}

/// Prefixes the variants of the enum, and puts comments of one line on one line.
fn tidy(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        let is_variant = line.trim_start().starts_with(|first: char| first.is_ascii_uppercase());
        match &mut lines[..] {
            [.., opening, summary] if line.trim() == "*/" && opening.trim() == "/**" => {
                let summary = summary.replacen("* ", "", 1);
                let indented = summary.len() - summary.trim_start().len() - 1;
                let comment = format!("{}/** {} */", &summary[..indented], summary.trim());
                lines.truncate(lines.len() - 2);
                lines.push(comment);
            }
            [.., previous] if line.is_empty() && previous.is_empty() => {}
            _ if is_variant => {
                lines.push(line.replacen(line.trim_start(), "", 1) + "HOPLITE_" + line.trim_start())
            }
            _ => lines.push(line.to_owned()),
        }
    }
    lines.join("\n") + "\n"
}

/// `NodeOptions` becomes `node_options`.
fn snake_case(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.extend(letter.to_lowercase());
    }
    text
}
