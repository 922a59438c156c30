//! Versions of engines.

use std::fmt;
use std::str::FromStr;

/// `major.minor.patch`; a missing part is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u32, pub u32, pub u32);

impl FromStr for Version {
    type Err = ();

    /// `0.19`, `v0.20.1`, `0.16.1rc1`, `b4321`.
    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.trim_start_matches(['v', 'b']).splitn(3, '.').map(|part| {
            let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part[..digits].parse::<u32>().map_err(|_| ())
        });
        let major = parts.next().ok_or(())??;
        Ok(Self(major, parts.next().transpose()?.unwrap_or(0), parts.next().transpose()?.unwrap_or(0)))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}.{}.{}", self.0, self.1, self.2))
    }
}
