use std::collections::BTreeMap;

use super::*;

/// What vLLM says itself that its kernels take (`tools/xtask/oracle/vllm_kernels.py`).
const TAKEN: &str = include_str!("../../../../../../tests/fixtures/oracles/vllm-0.33.0.kernels.txt");
const WORDS: &str =
    "auto float16 bfloat16 fp8 fp8_e4m3 fp8_e5m2 fp8_ds_mla nvfp4 int8_per_token_head turboquant_4bit_nc";
const SIZES: [(&str, &[u64]); 4] =
    [("keys", &[32, 64, 80, 96, 128, 256, 512]), ("sinks", &[64]), ("latents", &[576]), ("sparse", &[576, 512])];

/// What is asked in a line: the kernel, the GPU, the kind, the size, the dtype, the block and the ranks.
type Key = (String, String, String, u64, String, u64, bool);

fn theirs() -> BTreeMap<Key, String> {
    let line = |line: &str| {
        let mut parts = line.splitn(8, ' ').map(str::to_owned);
        let mut next = || parts.next().unwrap();
        let (name, gpu, kind, size, dtype) = (next(), next(), next(), next().parse().unwrap(), next());
        ((name, gpu, kind, size, dtype, next().parse().unwrap(), next() == "1"), next())
    };
    TAKEN.lines().map(line).collect()
}

/// The words that a kernel takes by its rows.
fn ours((name, gpu, kind, size, dtype, block, dcp): &Key) -> String {
    let gpu = match gpu.split_once(':').unwrap() {
        ("cuda", capability) => Gpu::Cuda(capability.parse().unwrap()),
        (_, gfx) => Gpu::Rocm(gfx.parse().unwrap()),
    };
    let run_in = match &**dtype {
        "bfloat16" => DType::Bf16,
        "float16" => DType::F16,
        _ => DType::F32,
    };
    let model = if kind == "sinks" { "gpt_oss" } else { "" };
    let wanted = Wanted {
        latents: matches!(&**kind, "latents" | "sparse"),
        sparse: kind == "sparse",
        dcp: *dcp,
        told: OfAttention {
            block: Some(*block).filter(|block| *block > 0),
            run_in: Some(run_in),
            ..OfAttention::default()
        },
        ..Wanted::latents(model, *size, false, READ, gpu)
    };
    let rows = || KERNELS.iter().filter(|kernel| kernel.name == name && kernel.versions.contains(&READ));
    let takes = |word: &&str| rows().any(|kernel| wanted.reasons(kernel, *size, word).is_empty());
    WORDS.split(' ').filter(takes).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_kernel_takes_what_vllm_says_that_it_takes() {
    let theirs = theirs();
    let mut kernels: Vec<(&str, &str)> = theirs.keys().map(|key| (&*key.0, key.1.split(':').next().unwrap())).collect();
    kernels.dedup();
    let gpus = ["cuda:75", "cuda:80", "cuda:90", "cuda:100", "cuda:120", "rocm:942"];
    let dtypes = ["bfloat16", "float16", "float32"].map(|dtype| [(dtype, 0, false), (dtype, 0, true)]);
    let blocks = [1, 16, 24, 64].map(|block| ("bfloat16", block, false));
    let mut wrong = Vec::new();
    for (name, gpu) in kernels
        .iter()
        .flat_map(|(name, of)| gpus.iter().filter(move |gpu| gpu.starts_with(of)).map(move |gpu| (name, gpu)))
    {
        for (kind, size) in SIZES.iter().flat_map(|(kind, sizes)| sizes.iter().map(move |size| (kind, *size))) {
            for (dtype, block, dcp) in dtypes.iter().flatten().chain(&blocks) {
                let key = (
                    (*name).to_owned(),
                    (*gpu).to_owned(),
                    (*kind).to_owned(),
                    size,
                    (*dtype).to_owned(),
                    *block,
                    *dcp,
                );
                let (said, found) = (theirs.get(&key).map_or("", String::as_str), ours(&key));
                if said != found {
                    wrong.push(format!("{key:?}: `{found}`, vLLM says `{said}`"));
                }
            }
        }
    }
    wrong.dedup();
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong.join("\n"));
    assert!(theirs.len() > 900, "{}", theirs.len());
}
