//! The device that a plan is for.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::size::ByteSize;

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

/// A device of which figures are known.
struct Known {
    maker: &'static str,
    name: &'static str,
    /// Its memory in MiB, as its maker's tool reports it.
    mib: u64,
    /// The compute capability of NVIDIA's, times ten.
    capability: Option<u32>,
    rates: Option<Rates>,
}

/// What a device does at best, as its maker states it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Bytes that its memory gives each second.
    pub bytes: f64,
    /// Operations each second on dense matrices of 16, 8 and 4 bits, a product and its sum as two; those of the fastest
    /// format of each width; absent where the maker states none.
    pub operations: Option<[f64; 3]>,
    /// Who states it.
    pub source: &'static str,
}

impl Rates {
    /// Seconds of an operation on numbers of so many bytes; between widths in proportion, as where matrices are mixed.
    pub fn seconds(&self, bytes: f64) -> f64 {
        let Some(rates) = self.operations else { return 0.0 };
        let [wide, middle, narrow] = rates.map(f64::recip);
        let between = |low: f64, high: f64, from: f64, to: f64| low + (high - low) * (bytes - from) / (to - from);
        match bytes {
            _ if bytes >= 2.0 => wide,
            _ if bytes >= 1.0 => between(middle, wide, 1.0, 2.0),
            _ if bytes >= 0.5 => between(narrow, middle, 0.5, 1.0),
            _ => narrow,
        }
    }
}

/// 10^9 bytes and 10^12 operations each second.
const fn rates(gigabytes: f64, tera: [f64; 3], source: &'static str) -> Option<Rates> {
    let [wide, middle, narrow] = tera;
    Some(Rates { bytes: gigabytes * 1e9, operations: Some([wide * 1e12, middle * 1e12, narrow * 1e12]), source })
}

const fn nvidia(name: &'static str, mib: u64, capability: u32, rates: Option<Rates>) -> Known {
    Known { maker: "NVIDIA", name, mib, capability: Some(capability), rates }
}

const fn amd(name: &'static str, mib: u64, rates: Option<Rates>) -> Known {
    Known { maker: "AMD", name, mib, capability: None, rates }
}

/// Memory that processor and GPU share; Apple states no rate of matrix products.
const fn apple(name: &'static str, gib: u64, gigabytes: f64) -> Known {
    let rates = Rates { bytes: gigabytes * 1e9, operations: None, source: "Apple's technical specifications" };
    Known { maker: "Apple", name, mib: gib << 10, capability: None, rates: Some(rates) }
}

/// Memory of NVIDIA's is as `nvidia-smi` reports it, error correction as delivered; of AMD's as `rocm-smi` does, but for
/// MI325X and MI355X, of which, as of Intel's and Apple's, only the data sheet is known. Of variants with one name the
/// rates are the fastest's; formats of 4 bits are those with integers where there are no others.
const KNOWN: [Known; 26] = [
    nvidia("A10", 23_028, 86, rates(600.0, [125.0, 250.0, 500.0], "NVIDIA A10 data sheet")),
    nvidia("A100-40GB", 40_960, 80, rates(1555.0, [312.0, 624.0, 1248.0], "NVIDIA A100 data sheet")),
    nvidia("A100-80GB", 81_920, 80, rates(2039.0, [312.0, 624.0, 1248.0], "NVIDIA A100 data sheet")),
    nvidia("B200", 183_359, 100, rates(8000.0, [2250.0, 4500.0, 9000.0], "NVIDIA HGX B200 data sheet")),
    nvidia("B300", 275_040, 103, rates(8000.0, [2500.0, 5000.0, 15_000.0], "NVIDIA GB300 data sheet")),
    nvidia("GB200", 189_471, 100, rates(8000.0, [2500.0, 5000.0, 10_000.0], "NVIDIA GB200 NVL72 data sheet")),
    Known {
        maker: "Intel",
        name: "Gaudi-3",
        mib: 131_072,
        capability: None,
        rates: rates(3700.0, [1835.0, 1835.0, 1835.0], "Intel Gaudi 3 white paper"),
    },
    nvidia("H100", 81_559, 90, rates(3350.0, [989.5, 1979.0, 1979.0], "NVIDIA H100 data sheet, SXM")),
    nvidia("H100-NVL", 95_830, 90, rates(3938.0, [835.5, 1671.0, 1671.0], "NVIDIA H100 NVL data sheet")),
    // No data sheet of it is public.
    nvidia("H20", 97_871, 90, None),
    nvidia("H200", 143_771, 90, rates(4800.0, [989.5, 1979.0, 1979.0], "NVIDIA H200 data sheet, SXM")),
    nvidia("L4", 23_034, 89, rates(300.0, [121.0, 242.5, 485.0], "NVIDIA L4 data sheet")),
    nvidia("L40S", 46_068, 89, rates(864.0, [366.0, 733.0, 1466.0], "NVIDIA L40S data sheet")),
    apple("M2-Ultra-192GB", 192, 800.0),
    apple("M3-Ultra-512GB", 512, 819.0),
    apple("M4-Max-128GB", 128, 546.0),
    amd("MI300X", 196_592, rates(5325.0, [1307.4, 2614.9, 2614.9], "AMD Instinct MI300X data sheet")),
    amd("MI325X", 262_144, rates(6000.0, [1307.4, 2614.9, 2614.9], "AMD Instinct MI325X data sheet")),
    amd("MI355X", 294_912, rates(8000.0, [2516.6, 5033.2, 10_066.3], "AMD Instinct MI355X data sheet")),
    nvidia("RTX-3090", 24_576, 86, rates(936.0, [142.0, 284.0, 568.0], "NVIDIA GA102 white paper")),
    nvidia("RTX-4090", 24_564, 89, rates(1008.0, [330.3, 660.6, 1321.2], "NVIDIA Ada white paper")),
    nvidia("RTX-5090", 32_607, 120, rates(1792.0, [419.0, 838.0, 1676.0], "NVIDIA RTX Blackwell white paper")),
    nvidia("RTX-6000-Ada", 49_140, 89, rates(960.0, [364.2, 728.5, 1457.0], "NVIDIA RTX 6000 Ada data sheet")),
    nvidia("RTX-A6000", 49_140, 86, rates(768.0, [154.8, 309.7, 619.4], "NVIDIA RTX A6000 data sheet")),
    nvidia("RTX-PRO-6000", 97_887, 120, rates(1792.0, [503.8, 1007.6, 2015.2], "NVIDIA RTX PRO Blackwell white paper")),
    nvidia("T4", 15_360, 75, rates(320.0, [65.0, 130.0, 260.0], "NVIDIA T4 data sheet")),
];

/// Why a text is no device.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadDevice {
    /// Neither a size nor a known name.
    #[error("`{0}` is neither a size, such as 24GiB, nor a device whose memory is known: {known}", known = DeviceInfo::names().collect::<Vec<_>>().join(", "))]
    Unknown(String),
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

    /// Whether only its name was stated, so that its memory is what devices of that name have.
    pub fn is_nominal(&self) -> bool {
        self.name.ends_with(NOMINAL)
    }

    /// The compute capability times ten, by which engines choose kernels; `None` where only the size is known.
    pub(crate) fn compute_capability(&self) -> Option<u32> {
        // Tools write more behind the name of a series, such as `NVIDIA H100 80GB HBM3`.
        let series = |known: &Known| known.name.trim_end_matches("-40GB").trim_end_matches("-80GB");
        let is = |known: &&Known| plain(&self.name).starts_with(&plain(&format!("{}{}", known.maker, series(known))));
        KNOWN.iter().filter(is).max_by_key(|known| known.name.len())?.capability
    }

    /// What it does at best; `None` where only its size is known, or its name alone.
    pub fn rates(&self) -> Option<Rates> {
        // An L40 is no L4: all words of the known name, and others only behind them.
        let words = |name: &str| {
            let words = name.split(['-', ' ', '_']).map(str::to_lowercase);
            words.filter(|word| word != "geforce" && word != "tesla").collect::<Vec<_>>()
        };
        let own = words(&self.name);
        let is = |known: &&Known| {
            let series = known.name.trim_end_matches("-40GB").trim_end_matches("-80GB");
            own.starts_with(&words(&format!("{}-{series}", known.maker)))
        };
        KNOWN.iter().filter(is).max_by_key(|known| known.name.len())?.rates
    }

    /// Who says how much memory it has: its maker's tool, or its data sheet.
    pub(crate) fn reported_by(&self) -> &'static str {
        match self.name.split(' ').next() {
            Some("NVIDIA") => "nvidia-smi",
            Some("AMD") => "rocm-smi",
            _ => "its data sheet",
        }
    }

    /// How many devices, and what each of them is: `8xh100`, or one where no count is written.
    ///
    /// # Errors
    /// As reading a device, and a count that is none.
    pub fn several(text: &str) -> Result<(u32, Self), BadDevice> {
        let counted = text.split_once(['x', 'X', '*']).map(|(count, device)| (count.trim(), device.trim()));
        match counted.filter(|(count, device)| is_number(count) && !device.is_empty()) {
            None => Ok((1, text.parse()?)),
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

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The known devices that `text` may mean: the one of that name, else those that only add a maker's series or a size
/// to it (`4090`, `a100`, `h100-80gb`).
fn candidates(text: &str) -> Vec<&'static Known> {
    let text = plain(text);
    if let Some(known) = KNOWN.iter().find(|known| plain(known.name) == text) {
        return vec![known];
    }
    let alike = |known: &&Known| {
        let name = plain(known.name);
        let sized = format!("{name}{}gb", (known.mib + 512) / 1024);
        let series = name.strip_prefix("rtx").is_some_and(|rest| rest == text);
        let without_size = known.name.strip_suffix("GB").and_then(|name| name.rsplit_once('-'));
        series || sized == text || without_size.is_some_and(|(name, _)| plain(name) == text)
    };
    KNOWN.iter().filter(alike).collect()
}

impl FromStr for DeviceInfo {
    type Err = BadDevice;

    /// A GPU, all of whose memory is free: a size such as `24GiB`, or a name such as `h100`, however it is capitalised and
    /// its parts are joined.
    fn from_str(text: &str) -> Result<Self, BadDevice> {
        let text = text.trim();
        let meant = candidates(text);
        if is_number(text) {
            // 4090 bytes and 80 bytes are nobody's device.
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
    #[case("h100-80gb", "NVIDIA H100 (nominal)", 81_559 << 20)]
    #[case("mi300x", "AMD MI300X (nominal)", 196_592 << 20)]
    #[case("h20", "NVIDIA H20 (nominal)", 97_871 << 20)]
    #[case("85899345920B", "stated", 80 << 30)]
    fn a_size_or_a_name_is_a_device(#[case] text: &str, #[case] name: &str, #[case] bytes: u64) {
        let device: DeviceInfo = text.parse().unwrap();
        assert_eq!((device.name.as_str(), device.total_bytes, device.free_bytes), (name, bytes, bytes));
        assert_eq!(device.is_nominal(), name != "stated");
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
    #[case("")]
    #[case("-5GiB")]
    fn what_is_neither_lists_the_names(#[case] text: &str) {
        let error = text.parse::<DeviceInfo>().unwrap_err().to_string();
        assert!(error.starts_with(&format!("`{text}` is neither a size")), "{error}");
        assert!(error.contains("a100-40gb, a100-80gb, b200"), "{error}");
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
    #[case("4090", "`4090` does not say what it is; write rtx-4090 or 4090GiB")]
    #[case("85899345920", "`85899345920` does not say what it is; write 85899345920B")]
    fn what_may_be_several_things_is_refused_with_what_would_do(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(text.parse::<DeviceInfo>().unwrap_err().to_string(), expected);
    }

    #[rstest]
    #[case("8xh100", 8, "NVIDIA H100 (nominal)")]
    #[case("h100", 1, "NVIDIA H100 (nominal)")]
    #[case("2 x 24GiB", 2, "stated")]
    #[case("l40s", 1, "NVIDIA L40S (nominal)")]
    fn several_devices_have_a_count(#[case] text: &str, #[case] count: u32, #[case] name: &str) {
        let (found, device) = DeviceInfo::several(text).unwrap();
        assert_eq!((found, device.name.as_str()), (count, name));
    }

    #[rstest]
    #[case("0xh100")]
    #[case("5000xh100")]
    fn a_count_that_is_none_is_refused(#[case] text: &str) {
        assert_eq!(DeviceInfo::several(text), Err(BadDevice::Count { text: text.to_owned() }));
    }
}
