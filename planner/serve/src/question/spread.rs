//! The devices that llama.cpp finds, and which of its layers lie on each (`common/arg.cpp`, and `load_tensors` of b11549).

use std::ops::Range;

use cacheplan_planner::engines::Version;

use super::Question;
use crate::error::ServeError;
use crate::flags::parse::{Setting, program};
use crate::flags::values::stof;
use crate::remedy::Remedy;

const DEVICES: &str = "--device";
const SPLIT: &str = "--split-mode";
const SHARES: &str = "--tensor-split";

/// In b7921, and not in b7845 (ggml-org/llama.cpp#18919): devices of Metal are counted.
const COUNTS_METAL: Version = Version(7921, 0, 0);

/// Backends by the beginning of their devices' names, each with the makers whose devices it has; none of those that have any's.
const BACKENDS: [(&str, Option<&str>); 7] = [
    ("CUDA", Some("NVIDIA")),
    ("ROCm", Some("AMD")),
    ("MUSA", None),
    ("Vulkan", None),
    ("SYCL", None),
    ("MTL", Some("Apple")),
    ("Metal", Some("Apple")),
];

/// The devices on which layers may lie, as their backend calls them; none where all stays on the host.
pub(super) fn devices(question: &Question) -> Result<Vec<String>, ServeError> {
    const MAIN: &str = "--main-gpu";
    let mut found = match question.value(DEVICES) {
        // No backend of it runs on Intel's accelerators that are known here.
        None if maker(question) == Some("Intel") => Vec::new(),
        None => (0..question.seen().unwrap_or(1)).map(|index| own_name(question, index)).collect(),
        Some("none") => Vec::new(),
        Some(list) => list.split(',').map(|name| named(question, name)).collect::<Result<Vec<_>, _>>()?,
    };
    match question.value(SPLIT) {
        Some("none") if !found.is_empty() => {}
        Some("tensor") => {
            let why = "how caches that are divided themselves lie on devices was not read";
            return Err(ServeError::unread(SPLIT, why, [Remedy::Remove(SPLIT)]));
        }
        _ => return Ok(found),
    }
    let main = question.flag(MAIN).and_then(Setting::whole).unwrap_or(0);
    match usize::try_from(main) {
        Ok(main) if main < found.len() => Ok(vec![found.swap_remove(main)]),
        Ok(main) => {
            let said = format!("invalid value for main_gpu: {main} (available devices: {})", found.len());
            Err(question.refused(said, [Remedy::Set(MAIN, "0".to_owned())]))
        }
        Err(_) => Err(ServeError::unread(MAIN, "layers lie on no device then", [Remedy::Remove(MAIN)])),
    }
}

/// A device that a command names, as its backend writes it.
pub(super) fn named(question: &Question, written: &str) -> Result<String, ServeError> {
    let maker = maker(question);
    let has = |of: Option<&str>| of.is_none() || maker.is_none() || of == maker;
    let of_backend = |(name, of): &(&str, Option<&str>)| {
        let (start, index) = written.split_at_checked(name.len())?;
        let index = if index.is_empty() { "0" } else { index }.parse::<u32>().ok()?;
        let is_there = question.seen().is_none_or(|there| index < there);
        let is_it = start.eq_ignore_ascii_case(name) && has(*of) && is_there;
        is_it.then(|| if *name == "Metal" { (*name).to_owned() } else { format!("{name}{index}") })
    };
    if let Some(name) = BACKENDS.iter().find_map(of_backend) {
        return Ok(name);
    }
    let remedies = vec![Remedy::Remove(DEVICES)];
    if written.to_ascii_uppercase().starts_with("RPC") {
        return Err(ServeError::unread(DEVICES, "what a device of another host has is not known", remedies));
    }
    let said = format!("error while handling argument \"{DEVICES}\": invalid device: {written}");
    Err(ServeError::Parser { program: program(question.engine.engine), said, remedies })
}

/// Who makes the device, where its name says it.
fn maker(question: &Question) -> Option<&'static str> {
    question.device()?.maker()
}

/// A device as the backend of its maker calls it; NVIDIA's, where nobody says whose it is.
fn own_name(question: &Question, index: u32) -> String {
    match maker(question) {
        Some("Apple") if question.engine.version < COUNTS_METAL => "Metal".to_owned(),
        Some("Apple") => format!("MTL{index}"),
        Some("AMD") => format!("ROCm{index}"),
        _ => format!("CUDA{index}"),
    }
}

/// Whether matrices are divided by rows, and not by layers.
pub(super) fn is_by_rows(question: &Question) -> bool {
    question.value(SPLIT) == Some("row")
}

/// The shares that a command states for so many devices, if any.
pub(super) fn shares(question: &Question, devices: usize) -> Option<Vec<f32>> {
    let stated = question.value(SHARES).filter(|_| devices > 1)?;
    let mut stated: Vec<f32> = stated
        .split([',', '/'])
        .filter(|share| !share.is_empty())
        .take(devices)
        .map(|share| stof(share).unwrap_or(0.0))
        .collect();
    stated.resize(devices, 0.0);
    stated.iter().any(|share| *share > 0.0).then_some(stated)
}

/// The layers that lie on each of several devices, of those that are on any: each on the first of which the share ends behind it.
pub(super) fn spread(shares: &[f32], layers: Range<u64>) -> Vec<Range<u64>> {
    let sum: f32 = shares.iter().sum();
    let ends = shares.iter().scan(0.0, |end, share| {
        *end += share;
        Some(*end / sum)
    });
    let ends: Vec<f32> = ends.collect();
    let all = layers.end.saturating_sub(layers.start);
    let device =
        |layer: u64| ends.partition_point(|end| *end <= layer as f32 / all as f32).min(shares.len().saturating_sub(1));
    let mut at = 0;
    let mut of_device = |index: usize| {
        let from = at;
        while at < all && device(at) == index {
            at += 1;
        }
        layers.start + from..layers.start + at
    };
    (0..shares.len()).map(&mut of_device).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    /// As the engine's own log assigns them: 36 layers and the output.
    #[rstest]
    #[case(&[1.0], &[37])]
    #[case(&[1.0, 1.0], &[19, 18])]
    #[case(&[1.0; 8], &[5, 5, 4, 5, 5, 4, 5, 4])]
    #[case(&[3.0, 1.0], &[28, 9])]
    #[case(&[1.0, 0.0], &[37, 0])]
    #[case(&[0.0, 1.0], &[0, 37])]
    fn layers_lie_whole_where_their_share_ends_behind_them(#[case] shares: &[f32], #[case] expected: &[u64]) {
        let found: Vec<u64> = spread(shares, 0..37).into_iter().map(|layers| layers.end - layers.start).collect();
        assert_eq!(found, expected);
    }

    proptest! {
        #[test]
        fn every_layer_lies_on_one_device(
            shares in prop::collection::vec(0.0f32..1e12, 1..16).prop_filter("some", |of| of.iter().sum::<f32>() > 0.0),
            first in 0u64..50,
            count in 0u64..200,
        ) {
            let found = spread(&shares, first..first + count);
            prop_assert_eq!(found.len(), shares.len());
            prop_assert_eq!(found[0].start, first);
            prop_assert_eq!(found.last().map(|last| last.end), Some(first + count));
            prop_assert!(found.windows(2).all(|pair| pair[0].end == pair[1].start));
        }
    }
}
