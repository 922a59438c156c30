//! The sources of the standard library, pinned by hash, in `target/web`: from a package of Debian, of which nothing is
//! installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::files::{at, install, target, text, with_ending};
use crate::{said, sh};

/// Which sources.
const PINNED: &str = "tools/xtask/rust-src.txt";

/// Debian's own mirror.
const DEBIAN: &str = "http://deb.debian.org/debian";

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// What the file says.
#[derive(Debug, PartialEq)]
struct Pinned<'a> {
    rustc: &'a str,
    package: &'a str,
    suite: &'a str,
    hash: &'a str,
}

/// The folder `library`, fetched where it is not there yet.
pub(crate) fn library() -> Result<PathBuf, String> {
    let text = text(PINNED)?;
    let pinned =
        Pinned::read(&text).ok_or_else(|| format!("{PINNED}: rustc, package, suite and hash were expected"))?;
    let found = said(Command::new("rustc").arg("--version"))?;
    if found.split(' ').nth(1) != Some(pinned.rustc) {
        let (rustc, found) = (pinned.rustc, found.trim());
        return Err(format!("this needs rustc {rustc}, whose sources {PINNED} names; this is {found}"));
    }
    let home = target("web/rust-src")?;
    let library = home.join(format!("usr/src/rustc-{}/library", pinned.rustc));
    install(&home, &text, || {
        fs::create_dir_all(home.join("lists/partial")).map_err(at(&home))?;
        fetch(&home, &pinned)?;
        if library.is_dir() { Ok(()) } else { Err(format!("the package has no {}", library.display())) }
    })?;
    Ok(library)
}

/// Has a `cargo -Zbuild-std` take the standard library from there, which only a nightly compiler does, or one that is told to
/// be one.
pub(crate) fn std_from<'a>(library: &Path, cargo: &'a mut Command) -> &'a mut Command {
    cargo.env("RUSTC_BOOTSTRAP", "1").env("__CARGO_TESTS_ONLY_SRC_ROOT", library)
}

impl<'a> Pinned<'a> {
    fn read(text: &'a str) -> Option<Self> {
        let line = text.lines().find(|line| !line.starts_with('#'))?;
        let [rustc, package, suite, hash] = line.split(' ').collect::<Vec<_>>()[..] else { return None };
        Some(Self { rustc, package, suite, hash })
    }
}

/// Downloads the package with lists of its own, from the mirror of Debian that this machine uses, and unpacks it. Where apt
/// has no lists it knows of no mirror.
fn fetch(home: &Path, pinned: &Pinned<'_>) -> Result<(), String> {
    let sites = ["indextargets", "--format", "$(SITE)", "Created-By: Packages", "Origin: Debian"];
    let sites = said(Command::new("apt-get").args(sites))?;
    let site = sites.lines().find(|site| !site.contains("security")).unwrap_or(DEBIAN);
    let list = home.join("sources.list");
    let line = format!("deb [signed-by={KEYRING}] {site} {} main\n", pinned.suite);
    fs::write(&list, line).map_err(at(&list))?;
    let folder = home.display();
    let options = [
        format!("Dir::Etc::sourcelist={}", list.display()),
        "Dir::Etc::sourceparts=/dev/null".to_owned(),
        format!("Dir::State::lists={folder}/lists"),
        format!("Dir::Cache={folder}"),
        "APT::Sandbox::User=".to_owned(),
    ];
    let apt = || {
        let mut apt = Command::new("apt-get");
        apt.current_dir(home).arg("-qq").args(options.iter().flat_map(|option| ["-o", option]));
        apt
    };
    sh(apt().arg("update"))?;
    sh(apt().args(["download", pinned.package]))?;
    let package = with_ending(home, "deb")?.pop().ok_or_else(|| format!("apt put no package into {folder}"))?;
    let sum = said(Command::new("sha256sum").arg(&package))?;
    if sum.split(' ').next() != Some(pinned.hash) {
        return Err(format!("{} is not the package that {PINNED} names: {sum}", package.display()));
    }
    sh(Command::new("dpkg-deb").arg("-x").arg(&package).arg(home))?;
    fs::remove_file(&package).map_err(at(&package))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pinned_sources_are_named_whole() {
        let text = fs::read_to_string("rust-src.txt").unwrap();
        let pinned = Pinned::read(&text).unwrap();
        assert!(pinned.package.contains(pinned.rustc) && pinned.hash.len() == 64, "{pinned:?}");
        assert_eq!(Pinned::read("# a\n1.2.3 rust-src=1.2.3\n"), None);
    }
}
