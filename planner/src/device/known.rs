//! Devices of which figures are known.

/// A device of which figures are known.
pub(super) struct Known {
    pub(super) maker: &'static str,
    pub(super) name: &'static str,
    /// Its memory in MiB, as its maker's tool reports it.
    pub(super) mib: u64,
    /// The compute capability of NVIDIA's, times ten.
    pub(super) capability: Option<u32>,
    /// The number of AMD's.
    pub(super) gfx: Option<u32>,
    pub(super) rates: Option<Rates>,
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
    Known { maker: "NVIDIA", name, mib, capability: Some(capability), gfx: None, rates }
}

const fn amd(name: &'static str, mib: u64, gfx: u32, rates: Option<Rates>) -> Known {
    Known { maker: "AMD", name, mib, capability: None, gfx: Some(gfx), rates }
}

/// Memory that processor and GPU share; Apple states no rate of matrix products.
const fn apple(name: &'static str, gib: u64, gigabytes: f64) -> Known {
    let rates = Rates { bytes: gigabytes * 1e9, operations: None, source: "Apple's technical specifications" };
    Known { maker: "Apple", name, mib: gib << 10, capability: None, gfx: None, rates: Some(rates) }
}

/// Memory of NVIDIA's is as `nvidia-smi` reports it, error correction as delivered; of AMD's as `rocm-smi` does, but for
/// MI325X and MI355X, of which, as of Intel's and Apple's, only the data sheet is known. Of variants with one name the
/// rates are the fastest's; formats of 4 bits are those with integers where there are no others.
pub(super) const KNOWN: [Known; 30] = [
    nvidia("A10", 23_028, 86, rates(600.0, [125.0, 250.0, 500.0], "NVIDIA A10 data sheet")),
    nvidia("A100-40GB", 40_960, 80, rates(1555.0, [312.0, 624.0, 1248.0], "NVIDIA A100 data sheet")),
    nvidia("A100-40GB-PCIe", 40_960, 80, rates(1555.0, [312.0, 624.0, 1248.0], "NVIDIA A100 data sheet, PCIe")),
    nvidia("A100-80GB", 81_920, 80, rates(2039.0, [312.0, 624.0, 1248.0], "NVIDIA A100 data sheet")),
    nvidia("A100-80GB-PCIe", 81_920, 80, rates(1935.0, [312.0, 624.0, 1248.0], "NVIDIA A100 data sheet, PCIe")),
    // No data sheet of it is public.
    nvidia("A10G", 23_028, 86, None),
    nvidia("B200", 183_359, 100, rates(8000.0, [2250.0, 4500.0, 9000.0], "NVIDIA HGX B200 data sheet")),
    nvidia("B300", 275_040, 103, rates(8000.0, [2500.0, 5000.0, 15_000.0], "NVIDIA GB300 data sheet")),
    nvidia("GB200", 189_471, 100, rates(8000.0, [2500.0, 5000.0, 10_000.0], "NVIDIA GB200 NVL72 data sheet")),
    Known {
        maker: "Intel",
        name: "Gaudi-3",
        mib: 131_072,
        capability: None,
        gfx: None,
        rates: rates(3700.0, [1835.0, 1835.0, 1835.0], "Intel Gaudi 3 white paper"),
    },
    nvidia("H100", 81_559, 90, rates(3350.0, [989.5, 1979.0, 1979.0], "NVIDIA H100 data sheet, SXM")),
    nvidia("H100-NVL", 95_830, 90, rates(3938.0, [835.5, 1671.0, 1671.0], "NVIDIA H100 NVL data sheet")),
    nvidia("H100-PCIe", 81_559, 90, rates(2000.0, [756.5, 1513.0, 1513.0], "NVIDIA H100 data sheet, PCIe")),
    // No data sheet of it is public.
    nvidia("H20", 97_871, 90, None),
    nvidia("H200", 143_771, 90, rates(4800.0, [989.5, 1979.0, 1979.0], "NVIDIA H200 data sheet, SXM")),
    nvidia("L4", 23_034, 89, rates(300.0, [121.0, 242.5, 485.0], "NVIDIA L4 data sheet")),
    nvidia("L40S", 46_068, 89, rates(864.0, [366.0, 733.0, 1466.0], "NVIDIA L40S data sheet")),
    apple("M2-Ultra-192GB", 192, 800.0),
    apple("M3-Ultra-512GB", 512, 819.0),
    apple("M4-Max-128GB", 128, 546.0),
    amd("MI300X", 196_592, 942, rates(5325.0, [1307.4, 2614.9, 2614.9], "AMD Instinct MI300X data sheet")),
    amd("MI325X", 262_144, 942, rates(6000.0, [1307.4, 2614.9, 2614.9], "AMD Instinct MI325X data sheet")),
    amd("MI355X", 294_912, 950, rates(8000.0, [2516.6, 5033.2, 10_066.3], "AMD Instinct MI355X data sheet")),
    nvidia("RTX-3090", 24_576, 86, rates(936.0, [142.0, 284.0, 568.0], "NVIDIA GA102 white paper")),
    nvidia("RTX-4090", 24_564, 89, rates(1008.0, [330.3, 660.6, 1321.2], "NVIDIA Ada white paper")),
    nvidia("RTX-5090", 32_607, 120, rates(1792.0, [419.0, 838.0, 1676.0], "NVIDIA RTX Blackwell white paper")),
    nvidia("RTX-6000-Ada", 49_140, 89, rates(960.0, [364.2, 728.5, 1457.0], "NVIDIA RTX 6000 Ada data sheet")),
    nvidia("RTX-A6000", 49_140, 86, rates(768.0, [154.8, 309.7, 619.4], "NVIDIA RTX A6000 data sheet")),
    nvidia("RTX-PRO-6000", 97_887, 120, rates(1792.0, [503.8, 1007.6, 2015.2], "NVIDIA RTX PRO Blackwell white paper")),
    nvidia("T4", 15_360, 75, rates(320.0, [65.0, 130.0, 260.0], "NVIDIA T4 data sheet")),
];
