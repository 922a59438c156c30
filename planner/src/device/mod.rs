//! The device that a plan is for.

mod known;
mod names;

use std::str::FromStr;

use cacheplan_files::Shown;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::budget::Fraction;
use crate::size::ByteSize;
use known::{KNOWN, Known};

pub use known::Rates;

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

impl DeviceInfo {
    /// The host, for pools in its own memory.
    pub fn cpu(name: impl Into<String>, total_bytes: u64, free_bytes: u64) -> Self {
        Self { name: name.into(), total_bytes, free_bytes, kind: DeviceKind::Cpu }
    }

    /// A GPU with memory of its own.
    pub fn cuda(name: impl Into<String>, total_bytes: u64, free_bytes: u64) -> Self {
        Self { name: name.into(), total_bytes, free_bytes, kind: DeviceKind::Cuda }
    }
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

/// Why a text is no device.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadDevice {
    /// Neither a size nor a known name.
    #[error(
        "`{0}` is neither a size, such as 24GiB, nor a device whose memory is known{near}: {known}",
        near = near(.0),
        known = DeviceInfo::names().collect::<Vec<_>>().join(", "))]
    Unknown(String),
    /// A part of a device.
    #[error(
        "`{0}` is a part of a device; state the memory that it has, such as 9728MiB, as `nvidia-smi` reports it there"
    )]
    Part(String),
    /// A name that several devices have.
    #[error("`{text}` is several devices; write {}", choices.join(" or "))]
    Ambiguous {
        /// What was written.
        text: String,
        /// What would do.
        choices: Vec<String>,
    },
    /// A number without a unit, or a device with another memory.
    #[error("`{text}` does not say what it is; write {}", choices.join(" or "))]
    Bare {
        /// What was written.
        text: String,
        /// What would do.
        choices: Vec<String>,
    },
    /// A count of devices that there cannot be.
    #[error("`{text}`: between 1 and {most} devices were expected", most = DeviceInfo::MOST)]
    Count {
        /// What was written.
        text: String,
    },
}

/// What tells a device of which only the name is known from one that was read.
const NOMINAL: &str = " (nominal)";

/// However it is capitalised and its parts are joined.
fn plain(name: &str) -> String {
    name.replace(['-', '_', ' '], "").to_lowercase()
}

impl DeviceInfo {
    /// The most devices that `8xh100` may name.
    const MOST: u32 = 4096;

    /// The names of the devices whose memory is known, as they may be written: `a100-80gb`.
    pub fn names() -> impl Iterator<Item = String> {
        KNOWN.iter().map(|known| known.name.to_lowercase())
    }

    /// The share of its memory that is divided where nobody says what is: vLLM's default, and less where a processor shares
    /// it. Metal gives a GPU what it recommends: 0.84 of 128 GiB and 0.74 of 16 GiB in what users report (antirez/ds4#893,
    /// AlexsJones/llmfit#754).
    pub const fn usual_share(&self) -> Fraction {
        match self.kind {
            DeviceKind::Integrated => Fraction::percent(75),
            DeviceKind::Cuda | DeviceKind::Cpu => Fraction::percent(90),
        }
    }

    /// The shares of a memory with a processor beside it that a GPU was given in logs, from the least to the most; all of a memory of its own.
    pub const fn shares_of_gpu(&self) -> [Fraction; 2] {
        match self.kind {
            DeviceKind::Integrated => [Fraction::percent(67), Fraction::percent(84)],
            DeviceKind::Cuda | DeviceKind::Cpu => [Fraction::percent(100); 2],
        }
    }

    /// Whether only its name was stated, so that its memory is what devices of that name have.
    pub fn is_nominal(&self) -> bool {
        self.name.ends_with(NOMINAL)
    }

    /// Whether screens can be plugged into it, whose pictures are in its memory.
    pub(crate) fn has_outputs(&self) -> bool {
        self.name.contains(" RTX ")
    }

    /// The compute capability times ten, by which engines choose kernels; `None` where only the size is known.
    pub fn compute_capability(&self) -> Option<u32> {
        self.known()?.capability
    }

    /// AMD's number of one of its GPUs, by which engines choose kernels there: 942 of gfx942.
    pub(crate) fn gfx(&self) -> Option<u32> {
        self.known()?.gfx
    }

    fn known(&self) -> Option<&'static Known> {
        // Tools write more behind the name of a series, such as `NVIDIA H100 80GB HBM3`.
        let series = |known: &Known| known.name.trim_end_matches("-40GB").trim_end_matches("-80GB");
        let is = |known: &&Known| plain(&self.name).starts_with(&plain(&format!("{}{}", known.maker, series(known))));
        KNOWN.iter().filter(is).max_by_key(|known| known.name.len())
    }

    /// What it does at best; `None` where only its size is known, or its name alone.
    pub fn rates(&self) -> Option<Rates> {
        match &*names::meant(&self.name) {
            [known] => known.rates,
            _ => None,
        }
    }

    /// Bytes each second at most from host memory, by its slot's standard, and who states it; the slower where it is not known.
    pub fn host_link(&self) -> (f64, &'static str) {
        // 16 lanes, 128 bits of every 130, one way.
        let slot = |transfers: f64| transfers * 16.0 * 128.0 / 130.0 / 8.0;
        match self.compute_capability() {
            Some(90..) => (slot(32e9), "PCI Express 5.0, 16 lanes"),
            Some(..80) => (slot(8e9), "PCI Express 3.0, 16 lanes"),
            _ => (slot(16e9), "PCI Express 4.0, 16 lanes"),
        }
    }

    /// Who says how much memory it has: its maker's tool, or its data sheet.
    pub(crate) fn reported_by(&self) -> &'static str {
        match self.maker() {
            Some("NVIDIA") => "nvidia-smi",
            Some("AMD") => "rocm-smi",
            _ => "its data sheet",
        }
    }

    /// Who makes it, where its name says it: NVIDIA, AMD, Apple or Intel.
    pub fn maker(&self) -> Option<&'static str> {
        const MAKERS: [&str; 4] = ["NVIDIA", "AMD", "Apple", "Intel"];
        let first = self.name.split(' ').next()?;
        MAKERS.into_iter().find(|maker| *maker == first)
    }

    /// How many devices, and what each of them is: `8xh100`, `h100x8`, the cloud's `p5.48xlarge`, or one where no count is written.
    ///
    /// # Errors
    /// As reading a device, and a count that is none.
    pub fn several(text: &str) -> Result<(u32, Self), BadDevice> {
        const TIMES: [char; 3] = ['x', 'X', '*'];
        let trimmed = |(count, device): (&str, &str)| (count.trim().to_owned(), device.trim().to_owned());
        let is_counted = |(count, device): &(String, String)| is_number(count) && !device.is_empty();
        let is_known = |(_, device): &(String, String)| device.parse::<Self>().is_ok();
        let before = text.split_once(TIMES).map(trimmed).filter(is_counted);
        let behind = text.rsplit_once(TIMES).map(|(device, count)| trimmed((count, device))).filter(is_counted);
        match before.clone().filter(is_known).or(behind.filter(is_known)).or(before) {
            None => match names::instance(text) {
                Some((count, name)) => Ok((count, name.parse()?)),
                None => Ok((1, text.parse()?)),
            },
            Some((count, device)) => {
                let count = count.parse().ok().filter(|count| (1..=Self::MOST).contains(count));
                Ok((count.ok_or_else(|| BadDevice::Count { text: text.to_owned() })?, device.parse()?))
            }
        }
    }

    fn of(known: &Known) -> Self {
        let name = format!("{} {}{NOMINAL}", known.maker, known.name.replace('-', " "));
        let device = Self::with(name, known.mib << 20);
        if known.maker == "Apple" { Self { kind: DeviceKind::Integrated, ..device } } else { device }
    }

    fn with(name: String, bytes: u64) -> Self {
        Self::cuda(name, bytes, bytes)
    }
}

/// The known names that begin so, else the nearest, as a question.
fn near(text: &str) -> String {
    let begun: Vec<String> = DeviceInfo::names().filter(|name| plain(name).starts_with(&plain(text))).collect();
    let near = match &*begun {
        [] => Shown(text).nearest(DeviceInfo::names()),
        begun => Some(begun.join(" or ")),
    };
    near.filter(|_| !text.is_empty()).map_or(String::new(), |near| format!("; did you mean {near}? Those are"))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

impl FromStr for DeviceInfo {
    type Err = BadDevice;

    /// A GPU, all of whose memory is free: a size such as `24GiB`, or a name such as `h100`, however it is capitalised and
    /// its parts are joined, also as its maker's tool or a cloud's label writes it, `NVIDIA-H100-80GB-HBM3`.
    fn from_str(text: &str) -> Result<Self, BadDevice> {
        let text = text.trim();
        if names::is_part(text) {
            return Err(BadDevice::Part(text.to_owned()));
        }
        let meant = names::meant(text);
        // 80 bytes are nobody's device, and neither are 4090, which are what one is called.
        if is_number(text) && meant.len() != 1 {
            let mut choices: Vec<String> = meant.iter().map(|known| known.name.to_lowercase()).collect();
            choices.push(if text.len() > 6 { format!("{text}B") } else { format!("{text}GiB") });
            return Err(BadDevice::Bare { text: text.to_owned(), choices });
        }
        match &*meant {
            [known] => Ok(Self::of(known)),
            [] => match text.parse::<ByteSize>() {
                Ok(size) => Ok(Self::with("stated".to_owned(), size.0)),
                Err(_) => Err(BadDevice::Unknown(text.to_owned())),
            },
            several => {
                let choices = several.iter().map(|known| known.name.to_lowercase()).collect();
                Err(BadDevice::Ambiguous { text: text.to_owned(), choices })
            }
        }
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
    #[case("4090", "NVIDIA RTX 4090 (nominal)", 24_564 << 20)]
    #[case("h100-80gb", "NVIDIA H100 (nominal)", 81_559 << 20)]
    #[case("mi300x", "AMD MI300X (nominal)", 196_592 << 20)]
    #[case("h20", "NVIDIA H20 (nominal)", 97_871 << 20)]
    #[case("NVIDIA-H100-80GB-HBM3", "NVIDIA H100 (nominal)", 81_559 << 20)]
    #[case("NVIDIA H100 80GB HBM3", "NVIDIA H100 (nominal)", 81_559 << 20)]
    #[case("NVIDIA-H100-80GB-HBM3-SHARED", "NVIDIA H100 (nominal)", 81_559 << 20)]
    #[case("nvidia-h100-mega-80gb", "NVIDIA H100 (nominal)", 81_559 << 20)]
    #[case("NVIDIA-H100-PCIe", "NVIDIA H100 PCIe (nominal)", 81_559 << 20)]
    #[case("NVIDIA-L40S-PCIe", "NVIDIA L40S (nominal)", 46_068 << 20)]
    #[case("NVIDIA-A100-80GB-PCIe", "NVIDIA A100 80GB PCIe (nominal)", 80 << 30)]
    #[case("NVIDIA H100 NVL", "NVIDIA H100 NVL (nominal)", 95_830 << 20)]
    #[case("NVIDIA-A100-SXM4-80GB", "NVIDIA A100 80GB (nominal)", 80 << 30)]
    #[case("NVIDIA A100-PCIE-40GB", "NVIDIA A100 40GB PCIe (nominal)", 40 << 30)]
    #[case("nvidia-tesla-a100", "NVIDIA A100 40GB (nominal)", 40 << 30)]
    #[case("NVIDIA-L40S", "NVIDIA L40S (nominal)", 46_068 << 20)]
    #[case("nvidia-l4", "NVIDIA L4 (nominal)", 23_034 << 20)]
    #[case("NVIDIA-H200", "NVIDIA H200 (nominal)", 143_771 << 20)]
    #[case("nvidia-h200-141gb", "NVIDIA H200 (nominal)", 143_771 << 20)]
    #[case("NVIDIA-B200", "NVIDIA B200 (nominal)", 183_359 << 20)]
    #[case("NVIDIA-A10G", "NVIDIA A10G (nominal)", 23_028 << 20)]
    #[case("Tesla-T4", "NVIDIA T4 (nominal)", 15_360 << 20)]
    #[case("NVIDIA GeForce RTX 4090", "NVIDIA RTX 4090 (nominal)", 24_564 << 20)]
    #[case("NVIDIA RTX 6000 Ada Generation", "NVIDIA RTX 6000 Ada (nominal)", 49_140 << 20)]
    #[case("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "NVIDIA RTX PRO 6000 (nominal)", 97_887 << 20)]
    #[case("AMD_Instinct_MI300X_OAM", "AMD MI300X (nominal)", 196_592 << 20)]
    #[case("m3-ultra-512gb", "Apple M3 Ultra 512GB (nominal)", 512 << 30)]
    #[case("85899345920B", "stated", 80 << 30)]
    fn a_size_or_a_name_is_a_device(#[case] text: &str, #[case] name: &str, #[case] bytes: u64) {
        let device: DeviceInfo = text.parse().unwrap();
        assert_eq!((device.name.as_str(), device.total_bytes, device.free_bytes), (name, bytes, bytes));
        assert_eq!(device.is_nominal(), name != "stated");
    }

    #[rstest]
    #[case("l40", "; did you mean l40s?")]
    #[case("rtx-409", "; did you mean rtx-4090?")]
    #[case("RTX 5098", "; did you mean rtx-5090?")]
    #[case("mi300", "; did you mean mi300x?")]
    #[case("toaster", "is known: ")]
    fn what_was_probably_meant_is_named(#[case] text: &str, #[case] said: &str) {
        let error = text.parse::<DeviceInfo>().unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }

    #[rstest]
    #[case("NVIDIA H100 80GB HBM3", Some(90))]
    #[case("NVIDIA H20 (nominal)", Some(90))]
    #[case("NVIDIA A100-SXM4-80GB", Some(80))]
    #[case("NVIDIA A100 80GB PCIe", Some(80))]
    #[case("NVIDIA B200 (nominal)", Some(100))]
    #[case("NVIDIA L40S", Some(89))]
    #[case("AMD MI300X (nominal)", None)]
    #[case("stated", None)]
    fn a_name_tells_the_compute_capability(#[case] name: &str, #[case] capability: Option<u32>) {
        assert_eq!(DeviceInfo::cuda(name, 1, 1).compute_capability(), capability);
    }

    #[rstest]
    #[case("NVIDIA H100 80GB HBM3", Some(3350e9))]
    #[case("NVIDIA A100-SXM4-80GB", Some(2039e9))]
    #[case("NVIDIA A100-SXM4-40GB", Some(1555e9))]
    #[case("NVIDIA H100 PCIe", Some(2000e9))]
    #[case("NVIDIA H100 PCIe (nominal)", Some(2000e9))]
    #[case("NVIDIA A100 80GB PCIe", Some(1935e9))]
    #[case("NVIDIA GeForce RTX 4090", Some(1008e9))]
    #[case("NVIDIA H20 (nominal)", None)]
    #[case("NVIDIA L40", None)]
    #[case("Apple M3 Ultra 512GB (nominal)", Some(819e9))]
    #[case("stated", None)]
    fn a_name_tells_the_rate_of_memory(#[case] name: &str, #[case] bytes: Option<f64>) {
        assert_eq!(DeviceInfo::cuda(name, 1, 1).rates().map(|rates| rates.bytes), bytes);
    }

    #[test]
    fn mixed_widths_take_their_shares_of_both_rates() {
        let rates = "h100".parse::<DeviceInfo>().unwrap().rates().unwrap();
        let of = |bytes| 1.0 / rates.seconds(bytes) / 1e12;
        assert!((of(2.0) - 989.5).abs() < 1e-6 && (of(1.0) - 1979.0).abs() < 1e-6 && of(4.0) == of(2.0));
        // Half of the weights in 16 bits and half in 8.
        assert!((rates.seconds(1.5) - (rates.seconds(2.0) + rates.seconds(1.0)) / 2.0).abs() < 1e-24);
    }

    #[rstest]
    #[case("a1000")]
    #[case("NVIDIA-H100-40GB")]
    #[case("NVIDIA-L40")]
    #[case("Tesla-V100-SXM2-16GB")]
    #[case("g5.largest")]
    #[case("nvidia")]
    #[case("")]
    #[case("-5GiB")]
    fn what_is_neither_lists_the_names(#[case] text: &str) {
        let error = text.parse::<DeviceInfo>().unwrap_err().to_string();
        assert!(error.starts_with(&format!("`{text}` is neither a size")), "{error}");
        assert!(error.contains("a100-40gb, a100-40gb-pcie, a100-80gb, a100-80gb-pcie, a10g, b200"), "{error}");
    }

    #[test]
    fn each_name_is_known_once_and_in_order() {
        assert!(KNOWN.is_sorted_by(|left, right| left.name < right.name));
        for Known { name, mib, .. } in KNOWN {
            assert_eq!(name.parse::<DeviceInfo>().unwrap().total_bytes, mib << 20);
        }
    }

    #[rstest]
    #[case("a100", "`a100` is several devices; write a100-40gb or a100-80gb")]
    #[case("80", "`80` does not say what it is; write 80GiB")]
    #[case("85899345920", "`85899345920` does not say what it is; write 85899345920B")]
    fn what_may_be_several_things_is_refused_with_what_would_do(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(text.parse::<DeviceInfo>().unwrap_err().to_string(), expected);
    }

    #[rstest]
    #[case("8xh100", 8, "NVIDIA H100 (nominal)")]
    #[case("h100", 1, "NVIDIA H100 (nominal)")]
    #[case("2 x 24GiB", 2, "stated")]
    #[case("h100x2", 2, "NVIDIA H100 (nominal)")]
    #[case("4090 x 2", 2, "NVIDIA RTX 4090 (nominal)")]
    #[case("2x5090", 2, "NVIDIA RTX 5090 (nominal)")]
    #[case("mi300x", 1, "AMD MI300X (nominal)")]
    #[case("l40s", 1, "NVIDIA L40S (nominal)")]
    #[case("p5.48xlarge", 8, "NVIDIA H100 (nominal)")]
    #[case("g6.xlarge", 1, "NVIDIA L4 (nominal)")]
    #[case("ml.g5.12xlarge", 4, "NVIDIA A10G (nominal)")]
    #[case("a3-highgpu-2g", 2, "NVIDIA H100 (nominal)")]
    #[case("Standard_ND96isr_H200_v5", 8, "NVIDIA H200 (nominal)")]
    fn several_devices_have_a_count(#[case] text: &str, #[case] count: u32, #[case] name: &str) {
        let (found, device) = DeviceInfo::several(text).unwrap();
        assert_eq!((found, device.name.as_str()), (count, name));
    }

    #[rstest]
    #[case("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb")]
    #[case("nvidia.com/mig-1g.10gb")]
    fn a_part_of_a_device_is_refused_with_what_would_do(#[case] text: &str) {
        let error = text.parse::<DeviceInfo>().unwrap_err();
        assert_eq!(error, BadDevice::Part(text.to_owned()));
        assert!(error.to_string().contains("state the memory"), "{error}");
    }

    #[rstest]
    #[case("0xh100")]
    #[case("5000xh100")]
    fn a_count_that_is_none_is_refused(#[case] text: &str) {
        assert_eq!(DeviceInfo::several(text), Err(BadDevice::Count { text: text.to_owned() }));
    }
}
