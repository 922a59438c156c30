//! What a batch script asks Slurm for.

/// The GPUs of a node.
pub(super) fn gpus(script: &str) -> Option<u32> {
    let lines = script.lines().filter_map(|line| line.trim_start().strip_prefix("#SBATCH "));
    let stated: Vec<(&str, &str)> = lines.filter_map(option).collect();
    let of = |names: &[&str]| stated.iter().rev().find(|(name, _)| names.contains(name)).map(|(_, value)| *value);
    // `a100:4` names the kind in front.
    let count = |value: &str| value.rsplit(':').next()?.parse().ok();
    let several = of(&["--nodes", "-N"]).is_some_and(|nodes| nodes != "1");
    let resource = of(&["--gres"]).and_then(|all| all.split(',').find_map(|one| one.strip_prefix("gpu:")));
    let of_all = of(&["--gpus", "-G"]).filter(|_| !several);
    resource.or_else(|| of(&["--gpus-per-node"])).or(of_all).and_then(count)
}

/// `--name=value`, `--name value`.
fn option(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.trim().split_once(['=', ' '])?;
    Some((name, value.split_whitespace().next()?))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use crate::manifest;

    #[rstest]
    #[case("--gres=gpu:a100:4", Some(4))]
    #[case("--gres gpu:2,license:1", Some(2))]
    #[case("--gpus-per-node=h100:8 # all", Some(8))]
    #[case("-G 2", Some(2))]
    #[case("--nodes=2\n#SBATCH --gpus=16", None)]
    #[case("--gres=gpu", None)]
    #[case("--time=1:00:00", None)]
    fn a_batch_script_has_the_gpus_that_it_asks_for(#[case] asked: &str, #[case] gpus: Option<u32>) {
        let text = format!("#!/bin/bash\n#SBATCH {asked}\nsrun --ntasks=1 vllm serve m\n");
        let found = manifest::read("job.sbatch", text.as_bytes()).unwrap();
        assert_eq!((found[0].words.join(" ").as_str(), found[0].gpus), ("vllm serve m", gpus));
    }
}
