//! The device that a plan is for.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::ByteSize;

/// A device, as someone who may read it described it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// `NVIDIA H200`, `cpu`.
    pub name: String,
    /// All its memory, in bytes.
    pub total_bytes: u64,
    /// What is free before the model's weights are loaded, in bytes.
    pub free_bytes: u64,
    /// What sort of memory it has.
    pub kind: DeviceKind,
}

/// What sort of memory a device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// The host's own memory.
    Cpu,
    /// A GPU with memory of its own.
    Cuda,
    /// A GPU that shares the host's memory.
    Integrated,
}

/// Names of NVIDIA's devices and the total MiB that `nvidia-smi` reports for them, error correction as delivered.
const KNOWN: [(&str, u64); 18] = [
    ("A10", 23_028),
    ("A100-40GB", 40_960),
    ("A100-80GB", 81_920),
    ("B200", 183_359),
    ("B300", 275_040),
    ("GB200", 189_471),
    ("H100", 81_559),
    ("H100-NVL", 95_830),
    ("H200", 143_771),
    ("L4", 23_034),
    ("L40S", 46_068),
    ("RTX-3090", 24_576),
    ("RTX-4090", 24_564),
    ("RTX-5090", 32_607),
    ("RTX-6000-Ada", 49_140),
    ("RTX-A6000", 49_140),
    ("RTX-PRO-6000", 97_887),
    ("T4", 15_360),
];

/// A text that is neither a size nor a known device.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is neither a size, such as 24GiB, nor a device whose memory is known: {known}", known = names())]
pub struct UnknownDevice(String);

fn names() -> String {
    KNOWN.map(|(name, _)| name.to_lowercase()).join(", ")
}

impl DeviceInfo {
    /// Whether only its name was stated, so that its memory is what devices of that name have.
    pub fn is_nominal(&self) -> bool {
        self.name.ends_with(NOMINAL)
    }
}

/// What tells a device of which only the name is known from one that was read.
const NOMINAL: &str = " (nominal)";

impl FromStr for DeviceInfo {
    type Err = UnknownDevice;

    /// A GPU, all of whose memory is free: a size such as `24GiB`, or a name such as `h100`, however it is capitalised and
    /// its parts are joined.
    fn from_str(text: &str) -> Result<Self, UnknownDevice> {
        let plain = |name: &str| name.replace(['-', '_', ' '], "").to_lowercase();
        let known = || KNOWN.into_iter().find(|(name, _)| plain(name) == plain(text));
        let (name, bytes) = match (text.parse::<ByteSize>(), known()) {
            (Ok(size), _) => ("stated".to_owned(), size.0),
            (Err(_), Some((name, mib))) => (format!("NVIDIA {}{NOMINAL}", name.replace('-', " ")), mib << 20),
            (Err(_), None) => return Err(UnknownDevice(text.to_owned())),
        };
        Ok(Self { name, total_bytes: bytes, free_bytes: bytes, kind: DeviceKind::Cuda })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("24GiB", "stated", 24 << 30)]
    #[case("h100", "NVIDIA H100 (nominal)", 81_559 << 20)]
    #[case("A100-80GB", "NVIDIA A100 80GB (nominal)", 80 << 30)]
    #[case("rtx 4090", "NVIDIA RTX 4090 (nominal)", 24_564 << 20)]
    #[case("RTX4090", "NVIDIA RTX 4090 (nominal)", 24_564 << 20)]
    fn a_size_or_a_name_is_a_device(#[case] text: &str, #[case] name: &str, #[case] bytes: u64) {
        let device: DeviceInfo = text.parse().unwrap();
        assert_eq!((device.name.as_str(), device.total_bytes, device.free_bytes), (name, bytes, bytes));
        assert_eq!(device.is_nominal(), name != "stated");
    }

    #[rstest]
    #[case("a100")]
    #[case("")]
    #[case("-5GiB")]
    fn what_is_neither_lists_the_names(#[case] text: &str) {
        let error = text.parse::<DeviceInfo>().unwrap_err().to_string();
        assert!(error.starts_with(&format!("`{text}` is neither a size")), "{error}");
        assert!(error.contains("a100-40gb, a100-80gb, b200"), "{error}");
    }

    #[test]
    fn each_name_is_known_once_and_in_order() {
        assert!(KNOWN.is_sorted_by(|(left, _), (right, _)| left < right));
        for (name, mib) in KNOWN {
            assert_eq!(name.parse::<DeviceInfo>().unwrap().total_bytes, mib << 20);
        }
    }
}
