//! Type-checks all crates for AArch64, where neither its standard library nor a C compiler for it is there.
//!
//! The standard library is checked from source, and a stub answers for the C compiler. Nothing that is built this way can be
//! linked or run.

use std::process::Command;

use crate::files::{at, target};
use crate::{rust_src, sh, stub};

const TARGET: &str = "aarch64-unknown-linux-gnu";

/// Leaves an empty file where an object was asked for.
const STUB_CC: &str = r#"#!/bin/sh
while [ $# -gt 0 ]; do
  if [ "$1" = -o ]; then : > "$2"; fi
  shift
done
"#;

pub(crate) fn run() -> Result<(), String> {
    let home = target("arm")?;
    let cc = home.join("bin/cc");
    stub::install(&cc, STUB_CC).map_err(at(&cc))?;
    let library = rust_src::library()?;
    sh(rust_src::std_from(&library, Command::new("cargo").args(["check", "--workspace", "--locked"]))
        .args(["--target", TARGET, "-Zbuild-std", "--target-dir"])
        .arg(&home)
        .env("CC_aarch64_unknown_linux_gnu", cc)
        .env("AR_aarch64_unknown_linux_gnu", "true"))
}
