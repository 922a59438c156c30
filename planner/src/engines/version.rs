//! Versions of engines.

use std::fmt;
use std::str::FromStr;

/// `major.minor.patch`; a missing part is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u32, pub u32, pub u32);

impl Version {
    /// Of what every version has.
    pub(crate) const EVER: Self = Self(0, 0, 0);
}

impl FromStr for Version {
    type Err = ();

    /// `0.19`, `v0.20.1`, `0.16.1rc1`, `b4321`; `0.20.1.dev0+g1015` is 0.20.0.
    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.trim_start_matches(['v', 'b']).splitn(3, '.').map(|part| {
            let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part[..digits].parse::<u32>().map_err(|_| ())
        });
        let major = parts.next().ok_or(())??;
        let (minor, patch) = (parts.next().transpose()?.unwrap_or(0), parts.next().transpose()?.unwrap_or(0));
        Ok(Self(major, minor, patch.saturating_sub(u32::from(is_changed(text)))))
    }
}

/// Whether it is a changed checkout of a release, which calls itself the next one with no commit behind it.
fn is_changed(text: &str) -> bool {
    let is_release = |text: &str| text.trim_start_matches('v').chars().all(|char| char.is_ascii_digit() || char == '.');
    let (release, behind) = text.split_once(".dev0").unwrap_or(("none", ""));
    is_release(release) && !behind.starts_with(|next: char| next.is_ascii_digit())
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}.{}.{}", self.0, self.1, self.2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("0.20.1.dev0+g101584af0.d20260424", Version(0, 20, 0))]
    #[case("v0.20.1.dev0", Version(0, 20, 0))]
    #[case("0.21.0.dev0", Version(0, 21, 0))]
    #[case("0.19.2rc1.dev134+gfe9c3d6c5", Version(0, 19, 2))]
    #[case("0.20.1rc1.dev0+g1", Version(0, 20, 1))]
    #[case("0.17.1.dev01", Version(0, 17, 1))]
    #[case("0.5.6.post2", Version(0, 5, 6))]
    fn a_changed_checkout_is_its_release(#[case] text: &str, #[case] version: Version) {
        assert_eq!(text.parse(), Ok(version));
    }
}
