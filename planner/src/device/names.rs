//! What devices are called: by people, by their makers' tools, and by clouds.

use super::known::{KNOWN, Known};

/// Words of a name that tell no device from another: makers, lines of products, form factors, memory, what a cloud adds.
const SAID_BESIDE: [&str; 30] = [
    "nvidia",
    "amd",
    "intel",
    "apple",
    "tesla",
    "geforce",
    "instinct",
    "gpu",
    "sxm",
    "sxm2",
    "sxm3",
    "sxm4",
    "sxm5",
    "sxm6",
    "oam",
    "hbm2",
    "hbm2e",
    "hbm3",
    "hbm3e",
    "gddr6",
    "generation",
    "blackwell",
    "workstation",
    "server",
    "edition",
    "mega",
    "shared",
    "nominal",
    "(nominal)",
    "accelerator",
];

/// The known devices that `text` may mean: those of that name, of which a series (`4090`) and a size (`a100`) may be left out. The
/// form `PCIe` tells one from another only where there is one of that form.
pub(super) fn meant(text: &str) -> Vec<&'static Known> {
    let named = alike(text);
    let plain = text.to_lowercase().replace("pcie", "");
    if named.is_empty() { alike(&plain) } else { named }
}

fn alike(text: &str) -> Vec<&'static Known> {
    let text = text.trim().to_lowercase();
    // GKE calls only that of 40 GB so; the other is `nvidia-a100-80gb`.
    let text = if text == "nvidia-tesla-a100" { "a100-40gb" } else { &*text };
    let (series, size) = parts(text);
    let alike = |known: &&Known| {
        let (name, _) = parts(known.name);
        // Sizes are those of the maker, of which its tool reports a little less.
        let near = |gigabytes: u64| (gigabytes << 10).abs_diff(known.mib) * 12 <= known.mib;
        (name == series || name.strip_prefix("rtx") == Some(&*series)) && size.is_none_or(near)
    };
    if series.is_empty() { Vec::new() } else { KNOWN.iter().filter(alike).collect() }
}

/// What tells a name from others, and the size in it.
fn parts(name: &str) -> (String, Option<u64>) {
    let size = |word: &str| word.strip_suffix("gb")?.parse::<u64>().ok().filter(|size| *size < 1 << 20);
    // Apple's Max is a chip, NVIDIA's a limit of power.
    let name = name.to_lowercase().replace("max-q", "");
    let words = name.split(['-', '_', ' ']).filter(|word| !word.is_empty());
    let (sizes, words): (Vec<&str>, Vec<&str>) = words.partition(|word| size(word).is_some());
    let told = words.into_iter().filter(|word| !SAID_BESIDE.contains(word)).collect();
    (told, sizes.first().and_then(|word| size(word)))
}

/// Whether a name is that of a part of a device.
pub(super) fn is_part(text: &str) -> bool {
    text.to_lowercase().split(['-', '_', ' ', '/']).any(|word| word == "mig")
}

/// Clouds' instances: the name, or its start before a size such as `2xlarge`; how many devices, and which. The first that fits
/// holds. No list of the clouds' own was read for it.
const INSTANCES: [(&str, u32, &str); 61] = [
    ("g4dn.12xlarge", 4, "t4"),
    ("g4dn.metal", 8, "t4"),
    ("g4dn.", 1, "t4"),
    ("g5.12xlarge", 4, "a10g"),
    ("g5.24xlarge", 4, "a10g"),
    ("g5.48xlarge", 8, "a10g"),
    ("g5.", 1, "a10g"),
    ("g6.12xlarge", 4, "l4"),
    ("g6.24xlarge", 4, "l4"),
    ("g6.48xlarge", 8, "l4"),
    ("g6.", 1, "l4"),
    ("gr6.", 1, "l4"),
    ("g6e.12xlarge", 4, "l40s"),
    ("g6e.24xlarge", 4, "l40s"),
    ("g6e.48xlarge", 8, "l40s"),
    ("g6e.", 1, "l40s"),
    ("p4d.24xlarge", 8, "a100-40gb"),
    ("p4de.24xlarge", 8, "a100-80gb"),
    ("p5.4xlarge", 1, "h100"),
    ("p5.48xlarge", 8, "h100"),
    ("p5e.48xlarge", 8, "h200"),
    ("p5en.48xlarge", 8, "h200"),
    ("p6-b200.48xlarge", 8, "b200"),
    ("p6-b300.48xlarge", 8, "b300"),
    ("p6e-gb200.36xlarge", 4, "gb200"),
    ("a2-highgpu-1g", 1, "a100-40gb"),
    ("a2-highgpu-2g", 2, "a100-40gb"),
    ("a2-highgpu-4g", 4, "a100-40gb"),
    ("a2-highgpu-8g", 8, "a100-40gb"),
    ("a2-megagpu-16g", 16, "a100-40gb"),
    ("a2-ultragpu-1g", 1, "a100-80gb"),
    ("a2-ultragpu-2g", 2, "a100-80gb"),
    ("a2-ultragpu-4g", 4, "a100-80gb"),
    ("a2-ultragpu-8g", 8, "a100-80gb"),
    ("a3-highgpu-1g", 1, "h100"),
    ("a3-highgpu-2g", 2, "h100"),
    ("a3-highgpu-4g", 4, "h100"),
    ("a3-highgpu-8g", 8, "h100"),
    ("a3-megagpu-8g", 8, "h100"),
    ("a3-ultragpu-8g", 8, "h200"),
    ("a4-highgpu-8g", 8, "b200"),
    ("a4x-highgpu-4g", 4, "gb200"),
    ("g2-standard-24", 2, "l4"),
    ("g2-standard-48", 4, "l4"),
    ("g2-standard-96", 8, "l4"),
    ("g2-standard-4", 1, "l4"),
    ("g2-standard-8", 1, "l4"),
    ("g2-standard-12", 1, "l4"),
    ("g2-standard-16", 1, "l4"),
    ("g2-standard-32", 1, "l4"),
    ("standard_nc24ads_a100_v4", 1, "a100-80gb"),
    ("standard_nc48ads_a100_v4", 2, "a100-80gb"),
    ("standard_nc96ads_a100_v4", 4, "a100-80gb"),
    ("standard_nc40ads_h100_v5", 1, "h100-nvl"),
    ("standard_nc80adis_h100_v5", 2, "h100-nvl"),
    ("standard_nd96asr_v4", 8, "a100-40gb"),
    ("standard_nd96amsr_a100_v4", 8, "a100-80gb"),
    ("standard_nd96isr_h100_v5", 8, "h100"),
    ("standard_nd96isr_h200_v5", 8, "h200"),
    ("standard_nd96isr_mi300x_v5", 8, "mi300x"),
    ("standard_nv36ads_a10_v5", 1, "a10"),
];

/// How many devices a cloud's instance has, and which.
pub(super) fn instance(text: &str) -> Option<(u32, &'static str)> {
    let text = text.trim().to_lowercase();
    let text = text.strip_prefix("ml.").unwrap_or(&text);
    let is_size =
        |rest: &str| rest.strip_suffix("xlarge").is_some_and(|count| count.bytes().all(|digit| digit.is_ascii_digit()));
    let fits = |name: &str| match text.strip_prefix(name) {
        Some("") => true,
        Some(rest) => name.ends_with('.') && is_size(rest),
        None => false,
    };
    INSTANCES.iter().find(|(name, ..)| fits(name)).map(|(_, count, device)| (*count, *device))
}
