//! Shell scripts in place of compilers, for builds of which nothing is linked.

use std::fs;
use std::path::Path;

/// Writes the script `text` to `file`, with the folders above it.
pub(crate) fn install(file: &Path, text: &str) -> std::io::Result<()> {
    fs::create_dir_all(file.parent().unwrap_or(Path::new("")))?;
    fs::write(file, text)?;
    make_executable(file)
}

#[cfg(unix)]
fn make_executable(file: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(file, fs::Permissions::from_mode(0o755))
}

#[cfg(not(unix))]
fn make_executable(_file: &Path) -> std::io::Result<()> {
    Err(std::io::Error::new(std::io::ErrorKind::Unsupported, "the stub is a shell script; run this on Unix"))
}
