//! A file that is written is the old one or the new one, whatever happens to the writer.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use cacheplan_files::{Lines, ReplaceError, replace};

/// One content of many: its number over and over, so that a mixture of two is none.
fn content(number: u64) -> Vec<u8> {
    let length = 100_000 + 7 * (number as usize % 1000);
    number.to_le_bytes().into_iter().cycle().take(8 * (length / 8)).collect()
}

fn is_whole(bytes: &[u8]) -> bool {
    let number = bytes.first_chunk().map_or(0, |first| u64::from_le_bytes(*first));
    bytes == content(number)
}

fn partial_files(folder: &Path) -> usize {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().ends_with(".partial")).count()
}

const PLACE: &str = "CACHEPLAN_TEST_PLACE";

/// What the next test starts and kills: it writes until it is stopped.
#[test]
fn writer() {
    let Ok(place) = std::env::var(PLACE) else { return };
    for number in u64::from(std::process::id()) << 32.. {
        replace(place.as_ref(), |out| out.write_all(&content(number))).unwrap();
    }
}

/// `CACHEPLAN_SOAK_KILLS` kills more writers.
#[test]
fn a_killed_writer_leaves_the_old_file_or_the_new_one() {
    let kills = kills();
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("plan.json");
    replace(&place, |out| out.write_all(&content(0))).unwrap();
    let (mut replaced, mut last) = (0, content(0));
    for kill in 0..kills {
        let mut writer = start_writer(&place);
        // From before the first write to the middle of a later one.
        std::thread::sleep(Duration::from_micros(1_000 + kill * 7_919 % 15_000));
        writer.kill().unwrap();
        writer.wait().unwrap();
        let found = fs::read(&place).unwrap();
        assert!(is_whole(&found), "after {kill} kills the file is neither the old one nor a new one");
        replaced += u64::from(found != last);
        last = found;
    }
    println!("{kills} kills, after {replaced} of them another file");
    assert!(kills < 100 || replaced > 0, "no writer ever came to an end of a write");
    // Whoever writes next clears up.
    replace(&place, |out| out.write_all(&content(1))).unwrap();
    assert_eq!(partial_files(folder.path()), 0);
}

#[test]
fn a_write_that_fails_keeps_the_old_file() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("plan.json");
    fs::write(&place, "old").unwrap();
    let full = replace(&place, |out| {
        std::io::Write::write_all(out, b"new")?;
        Err(std::io::ErrorKind::StorageFull.into())
    });
    assert!(matches!(full, Err(ReplaceError::Io { .. })));
    assert_eq!((fs::read(&place).unwrap(), partial_files(folder.path())), (b"old".to_vec(), 0));
}

#[test]
fn lines_keep_the_old_file_until_they_are_all_there() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("out.jsonl");
    let read = |place: &Path| fs::read_to_string(place).unwrap();
    // Where nothing is lost, whoever looks sees them come.
    let mut lines = Lines::create(&place).unwrap();
    lines.push("old").unwrap();
    assert_eq!((read(&place).as_str(), lines.beside()), ("old\n", None));
    lines.finish().unwrap();

    let mut lines = Lines::create(&place).unwrap();
    lines.push("new").unwrap();
    assert_eq!((read(&place).as_str(), read(lines.beside().unwrap()).as_str()), ("old\n", "new\n"));
    // Whoever writes them is stopped.
    drop(lines);
    assert_eq!(read(&place), "old\n");

    let mut lines = Lines::create(&place).unwrap();
    lines.push("newer").unwrap();
    lines.push("and more").unwrap();
    lines.finish().unwrap();
    assert_eq!((read(&place).as_str(), partial_files(folder.path())), ("newer\nand more\n", 0));
}

#[test]
fn many_writers_at_once_leave_one_whole_file() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("plan.json");
    std::thread::scope(|scope| {
        for writer in 0..8 {
            let place = &place;
            scope.spawn(move || {
                (0..20).for_each(|n| replace(place, |out| out.write_all(&content(100 * writer + n))).unwrap());
            });
        }
    });
    assert!(is_whole(&fs::read(&place).unwrap()));
    assert_eq!(partial_files(folder.path()), 0);
}

/// Seven writers, four of which are killed and started again all the time, and readers beside them: what is found is one
/// content or another, and a writer that is not killed always comes to its end.
#[test]
fn writers_that_are_killed_disturb_no_other() {
    let kills = kills() / 4;
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("plan.json");
    replace(&place, |out| out.write_all(&content(0))).unwrap();
    let left = AtomicU64::new(kills);
    let another = || left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
    std::thread::scope(|scope| {
        for killed in 0..4 {
            let (place, another) = (&place, &another);
            scope.spawn(move || {
                let mut wait = 1_000 + 3_331 * killed;
                while another() {
                    let mut writer = start_writer(place);
                    std::thread::sleep(Duration::from_micros(wait));
                    wait = 1_000 + (wait + 7_919) % 15_000;
                    writer.kill().unwrap();
                    writer.wait().unwrap();
                }
            });
        }
        for writer in 1..=3 {
            let (place, left) = (&place, &left);
            scope.spawn(move || {
                for n in 0.. {
                    replace(place, |out| out.write_all(&content(1000 * writer + n % 1000))).unwrap();
                    assert!(is_whole(&fs::read(place).unwrap()));
                    if left.load(Relaxed) == 0 {
                        break;
                    }
                }
            });
        }
    });
    replace(&place, |out| out.write_all(&content(1))).unwrap();
    assert_eq!(partial_files(folder.path()), 0);
}

/// How many writers are killed: 200 in the suite.
fn kills() -> u64 {
    std::env::var("CACHEPLAN_SOAK_KILLS").map_or(200, |text| text.parse().unwrap())
}

fn start_writer(place: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "writer", "--nocapture"])
        .env(PLACE, place)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[cfg(unix)]
mod unix {
    use super::*;
    use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};

    #[test]
    fn permissions_stay_and_a_link_leads_to_what_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (place, link) = (folder.path().join("real"), folder.path().join("link"));
        fs::write(&place, "old").unwrap();
        fs::set_permissions(&place, fs::Permissions::from_mode(0o640)).unwrap();
        symlink("real", &link).unwrap();
        replace(&link, |out| out.write_all(b"new")).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&place).unwrap(), b"new");
        assert_eq!(fs::metadata(&place).unwrap().permissions().mode() & 0o777, 0o640);
    }

    #[test]
    fn a_link_to_nothing_leads_to_a_new_file() {
        let folder = tempfile::tempdir().unwrap();
        symlink("new", folder.path().join("link")).unwrap();
        replace(&folder.path().join("link"), |out| out.write_all(b"new")).unwrap();
        assert_eq!(fs::read(folder.path().join("new")).unwrap(), b"new");
        symlink("circle", folder.path().join("circle")).unwrap();
        assert!(matches!(
            replace(&folder.path().join("circle"), |out| out.write_all(b"")),
            Err(ReplaceError::Io { .. })
        ));
    }

    #[test]
    fn what_is_no_regular_file_stays_what_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        symlink("/dev/null", folder.path().join("device")).unwrap();
        for (place, expected) in [("pipe", "a pipe"), ("device", "a device"), (".", "a folder")] {
            let error = replace(&folder.path().join(place), |out| out.write_all(b"new")).unwrap_err();
            assert!(matches!(error, ReplaceError::NotRegular { found, .. } if found == expected), "{error}");
        }
        assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
    }

    /// While it is written too: what was private is seen by nobody.
    #[test]
    fn a_private_file_is_private_all_the_time() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("plan.json");
        fs::write(&place, "old").unwrap();
        fs::set_permissions(&place, fs::Permissions::from_mode(0o600)).unwrap();
        replace(&place, |out| {
            std::io::Write::write_all(out, b"new")?;
            for entry in fs::read_dir(folder.path())? {
                assert_eq!(entry?.metadata()?.permissions().mode() & 0o777, 0o600);
            }
            Ok(())
        })
        .unwrap();
    }

    /// Two names of one file: the other one keeps the old content.
    #[test]
    fn a_file_of_two_names_keeps_the_old_content_under_the_other() {
        let folder = tempfile::tempdir().unwrap();
        let (place, other) = (folder.path().join("plan.json"), folder.path().join("kept.json"));
        fs::write(&place, "old").unwrap();
        fs::hard_link(&place, &other).unwrap();
        replace(&place, |out| out.write_all(b"new")).unwrap();
        assert_eq!((fs::read(&place).unwrap(), fs::read(&other).unwrap()), (b"new".to_vec(), b"old".to_vec()));
    }

    /// Whoever may not write into the folder gets an error, and the file stays. Root may.
    #[test]
    fn a_folder_that_may_not_be_written_keeps_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("plan.json");
        fs::write(&place, "old").unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o555)).unwrap();
        let is_root = fs::File::create(folder.path().join("probe")).is_ok();
        let written = replace(&place, |out| out.write_all(b"new"));
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(written.is_ok(), is_root);
        assert_eq!(fs::read(&place).unwrap(), if is_root { b"new" } else { b"old" });
        assert_eq!(partial_files(folder.path()), 0);
    }

    #[test]
    fn a_file_that_may_not_be_written_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("kept");
        fs::write(&place, "old").unwrap();
        fs::set_permissions(&place, fs::Permissions::from_mode(0o444)).unwrap();
        assert!(matches!(replace(&place, |out| out.write_all(b"new")), Err(ReplaceError::ReadOnly { .. })));
        assert_eq!(fs::read(&place).unwrap(), b"old");
    }
}
