//! Checks what the workspace depends on against `deny.toml`: licences, sources, and crates that must not be there.
//!
//! It reads the part of cargo-deny's own file that is used here: cargo already knows everything that is asked, and there is
//! nothing to install.

use serde::Deserialize;

use crate::metadata::{Dependency, Package, host, packages};

#[derive(Deserialize)]
struct Rules {
    licenses: Licenses,
    sources: Sources,
    bans: Bans,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    allow_registry: Vec<String>,
}

#[derive(Deserialize)]
struct Bans {
    deny: Vec<Banned>,
}

#[derive(Deserialize)]
struct Banned {
    #[serde(rename = "crate")]
    name: String,
}

pub(crate) fn run() -> Result<(), String> {
    let text = std::fs::read_to_string("deny.toml").map_err(|error| format!("deny.toml: {error}"))?;
    let rules: Rules = toml::from_str(&text).map_err(|error| format!("deny.toml: {error}"))?;
    let host = host()?;
    let mut wrong = Vec::new();
    for manifest in ["Cargo.toml", "kernels/gpu/Cargo.toml"] {
        wrong.extend(packages(manifest, &host)?.iter().flat_map(|package| faults(package, &rules)));
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

fn faults(package: &Package, rules: &Rules) -> Vec<String> {
    let mut faults = Vec::new();
    let of = format!("{} {}", package.name, package.version);
    let license = package.license.as_deref().unwrap_or_default();
    if !Expression(license).allowed(&|name| rules.licenses.allow.iter().any(|allowed| allowed == name)) {
        faults.push(format!("{of}: its licence `{license}` is not allowed"));
    }
    let registry = package.source.as_deref().map(|source| source.strip_prefix("registry+").unwrap_or(source));
    if let Some(source) =
        registry.filter(|source| !rules.sources.allow_registry.iter().any(|allowed| allowed == source))
    {
        faults.push(format!("{of}: comes from {source}"));
    }
    if rules.bans.deny.iter().any(|banned| banned.name == package.name) {
        faults.push(format!("{of}: is banned"));
    }
    let any = |dependency: &&Dependency| dependency.req == "*" && dependency.path.is_none() && package.source.is_none();
    faults
        .extend(package.dependencies.iter().filter(any).map(|any| format!("{of}: takes any version of {}", any.name)));
    faults
}

/// A licence expression of SPDX, and its older form with slashes. `AND` binds before `OR`.
struct Expression<'a>(&'a str);

impl Expression<'_> {
    fn allowed(&self, is_allowed: &impl Fn(&str) -> bool) -> bool {
        let spaced = self.0.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
        let words: Vec<&str> = spaced.split_whitespace().collect();
        let mut rest = words.as_slice();
        any(&mut rest, is_allowed) && rest.is_empty()
    }
}

fn any(words: &mut &[&str], is_allowed: &impl Fn(&str) -> bool) -> bool {
    let mut allowed = all(words, is_allowed);
    while let Some((&"OR", rest)) = words.split_first() {
        *words = rest;
        allowed |= all(words, is_allowed);
    }
    allowed
}

fn all(words: &mut &[&str], is_allowed: &impl Fn(&str) -> bool) -> bool {
    let mut allowed = one(words, is_allowed);
    while let Some((&"AND", rest)) = words.split_first() {
        *words = rest;
        allowed &= one(words, is_allowed);
    }
    allowed
}

fn one(words: &mut &[&str], is_allowed: &impl Fn(&str) -> bool) -> bool {
    let Some((first, rest)) = words.split_first() else { return false };
    *words = rest;
    if *first == "(" {
        let allowed = any(words, is_allowed);
        // A bracket that is not closed leaves words behind or none, and either is refused.
        return match words.split_first() {
            Some((&")", rest)) => {
                *words = rest;
                allowed
            }
            _ => false,
        };
    }
    if let [with @ "WITH", exception, rest @ ..] = *words {
        *words = rest;
        return is_allowed(&format!("{first} {with} {exception}"));
    }
    is_allowed(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_are_read_as_spdx_reads_them() {
        let allowed = |text: &str| Expression(text).allowed(&|name| matches!(name, "MIT" | "ISC" | "A WITH b"));
        for text in ["MIT", "MIT OR GPL-3.0", "GPL-3.0/MIT", "(MIT OR X) AND ISC", "A WITH b OR X", "X AND Y OR MIT"] {
            assert!(allowed(text), "{text}");
        }
        for text in ["", "GPL-3.0", "MIT AND X", "(MIT", "MIT)", "A", "A WITH c", "X OR (ISC AND X)"] {
            assert!(!allowed(text), "{text}");
        }
    }

    #[test]
    fn what_is_not_allowed_is_named() {
        let rules: Rules = toml::from_str(
            "[licenses]\nallow = [\"MIT\"]\n[sources]\nallow-registry = [\"r\"]\n[bans]\ndeny = [{ crate = \"x\" }]",
        )
        .unwrap();
        let package: Package = serde_json::from_str(
            r#"{"name": "x", "version": "1.0.0", "license": "GPL-3.0", "source": "git+somewhere", "manifest_path": "",
                "dependencies": []}"#,
        )
        .unwrap();
        assert_eq!(faults(&package, &rules).len(), 3);
    }
}
