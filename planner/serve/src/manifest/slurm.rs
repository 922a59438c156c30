//! What a batch script, or a step of it, asks Slurm for.

use super::engine::WRAPPERS;
use super::origin::Origin;
use crate::started::base;

/// What is asked for, by the names of its options.
struct Asked<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Asked<'a> {
    /// `--name=value`, `--name value`, `-N value`, `-Nvalue`, among words that are no options.
    fn of(words: &[&'a str]) -> Self {
        let next = words.iter().skip(1).copied().map(Some).chain([None]);
        let option = |(word, next): (&&'a str, Option<&'a str>)| match word.split_once('=') {
            Some(option) => Some(option),
            None if word.starts_with("--") || word.len() <= 2 => Some((*word, next?)),
            None => word.split_at_checked(2),
        };
        Self(words.iter().zip(next).filter_map(option).filter(|(name, _)| name.starts_with('-')).collect())
    }

    /// The last of options that say the same.
    fn last(&self, names: &[&str]) -> Option<&'a str> {
        self.0.iter().rev().find(|(name, _)| names.contains(name)).map(|(_, value)| *value)
    }

    /// Whether it has several nodes.
    fn several_nodes(&self) -> Option<bool> {
        self.last(&["--nodes", "-N"]).map(|nodes| nodes != "1")
    }

    /// The GPUs that a task sees of its node.
    fn gpus(&self, several_nodes: bool) -> Option<u32> {
        // `a100:4` names the kind in front.
        let count = |value: &str| value.rsplit(':').next()?.parse().ok();
        let resource = self.last(&["--gres"]).and_then(|all| all.split(',').find_map(|one| one.strip_prefix("gpu:")));
        let of_task = self.last(&["--gpus-per-task"]);
        let of_all = self.last(&["--gpus", "-G"]).filter(|_| !several_nodes);
        of_task.or(resource).or_else(|| self.last(&["--gpus-per-node"])).or(of_all).and_then(count)
    }
}

/// A script with what it asks for.
pub(super) fn of_script<'a>(script: &str, origin: Origin<'a>) -> Origin<'a> {
    let lines = script.lines().filter_map(|line| line.trim_start().strip_prefix("#SBATCH "));
    let asked = Asked::of(&lines.flat_map(str::split_whitespace).collect::<Vec<_>>());
    let several_nodes = asked.several_nodes().unwrap_or(false);
    Origin { gpus: asked.gpus(several_nodes), several_nodes, ..origin }
}

/// A step of it, `srun --gpus=4`, whose words stand in front of a program: it has no more than the script.
pub(super) fn of_step<'a>(before: &[String], origin: &Origin<'a>) -> Origin<'a> {
    let words = before.iter().map(String::as_str).skip_while(|word| base(word) != "srun").skip(1);
    let asked = Asked::of(&words.take_while(|word| !WRAPPERS.contains(&base(word))).collect::<Vec<_>>());
    let several_nodes = asked.several_nodes().unwrap_or(origin.several_nodes);
    let gpus = asked.gpus(several_nodes).into_iter().chain(origin.gpus).min();
    Origin { gpus, several_nodes, ..origin.clone() }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use crate::manifest;

    fn gpus(text: &str) -> Option<u32> {
        let found = manifest::read("job.sbatch", text.as_bytes()).unwrap();
        assert_eq!(found[0].words.join(" "), "vllm serve m");
        found[0].gpus
    }

    #[rstest]
    #[case("--gres=gpu:a100:4", Some(4))]
    #[case("--gres gpu:2,license:1", Some(2))]
    #[case("--gpus-per-node=h100:8", Some(8))]
    #[case("--gpus-per-task=2", Some(2))]
    #[case("--gres=gpu:8 --gpus-per-task=2", Some(2))]
    #[case("-G 2", Some(2))]
    #[case("-G2", Some(2))]
    #[case("--nodes=2 --gpus=16", None)]
    #[case("-N2 --gpus=16", None)]
    #[case("--gres=gpu", None)]
    #[case("--time=1:00:00", None)]
    fn a_script_and_a_step_have_the_gpus_that_they_ask_for(#[case] asked: &str, #[case] gpus_of: Option<u32>) {
        let lines = asked.replace(" -", "\n#SBATCH -");
        assert_eq!(gpus(&format!("#!/bin/bash\n#SBATCH {lines} # all\nsrun --ntasks=1 vllm serve m\n")), gpus_of);
        assert_eq!(gpus(&format!("#!/bin/bash\nsrun --ntasks=1 {asked} vllm serve m\n")), gpus_of);
    }

    #[rstest]
    #[case::fewer("--gres=gpu:4", "--gpus=2", Some(2))]
    #[case::no_more_than_the_script("--gres=gpu:4", "--gpus=8", Some(4))]
    #[case::as_the_script("--gres=gpu:4", "--ntasks=1", Some(4))]
    #[case::nodes_of_the_script("--nodes=2", "--gpus=16", None)]
    #[case::nodes_of_the_step("--nodes=2", "--nodes=1 --gpus=4", Some(4))]
    #[case::options_of_another_program("--gres=gpu:4", "numactl -N 0 -G 2", Some(4))]
    fn a_step_has_no_more_than_its_script(#[case] script: &str, #[case] step: &str, #[case] gpus_of: Option<u32>) {
        assert_eq!(gpus(&format!("#!/bin/bash\n#SBATCH {script}\nsrun {step} vllm serve m\n")), gpus_of);
    }
}
