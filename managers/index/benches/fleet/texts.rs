//! What the fleet of the benches holds, as the messages that say so.

pub(crate) const WORKERS: u64 = 256;
pub(crate) const TEXTS: u64 = 8;
pub(crate) const BLOCK: usize = 16;
pub(crate) const TOKENS: usize = 32 << 10;
pub(crate) const SHARED: usize = 1 << 10;
pub(crate) const BETWEEN_STATES: usize = 2048;

pub(crate) fn token(text: u64, at: usize) -> u32 {
    let text = if at < SHARED { 0 } else { text + 1 };
    (text.wrapping_mul(0x9e37_79b9).wrapping_add(at as u64 * 7919) % 150_000) as u32
}

/// What an engine's strong hash would be.
pub(crate) fn hash(text: u64, end: usize) -> u64 {
    let text = if end <= SHARED { 0 } else { text + 1 };
    let mixed = (text << 32 | end as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

fn key(out: &mut Vec<u8>, text: &[u8]) {
    out.push(0xa0 | u8::try_from(text.len()).unwrap());
    out.extend(text);
}

/// A batch of one BlockStored of one block, as vLLM sends it.
pub(crate) fn stored(text: u64, end: usize, group: u8, hash: impl Fn(u64, usize) -> u64) -> Vec<u8> {
    let mut out = vec![0x93, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0x91, 0x8a];
    key(&mut out, b"type");
    key(&mut out, b"BlockStored");
    key(&mut out, b"block_hashes");
    out.extend([0x91, 0xcf]);
    out.extend(hash(text, end).to_be_bytes());
    key(&mut out, b"parent_block_hash");
    if end == BLOCK {
        out.push(0xc0);
    } else {
        out.push(0xcf);
        out.extend(hash(text, end - BLOCK).to_be_bytes());
    }
    key(&mut out, b"token_ids");
    out.extend([0xdc, 0, 16]);
    for at in end - BLOCK..end {
        out.push(0xce);
        out.extend(token(text, at).to_be_bytes());
    }
    key(&mut out, b"block_size");
    out.push(16);
    key(&mut out, b"lora_id");
    out.push(0xc0);
    key(&mut out, b"medium");
    key(&mut out, b"GPU");
    key(&mut out, b"lora_name");
    out.push(0xc0);
    key(&mut out, b"group_idx");
    out.push(group);
    key(&mut out, b"kv_cache_spec_kind");
    key(&mut out, if group == 0 { b"full_attention" } else { b"mamba" });
    out.push(0);
    out
}

/// Bytes that the process has in memory, as Linux says.
pub(crate) fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok()).unwrap_or(0) << 10
}
