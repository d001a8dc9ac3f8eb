//! What is served, and what loads ask for: the paper's files.

use super::bed::Folder;

/// The least and the greatest file, and the power by which sizes fall so that they come to 700 bytes on average.
const FILE_BYTES: (f64, f64) = (30.0, 5670.0);
const FILE_POWER: f64 = 1.238;

/// The size of a file: densities fall by a power, the files stand at equal steps of the distribution.
fn file_bytes(file: u32, files: u32) -> usize {
    let (least, greatest) = FILE_BYTES;
    let at = (f64::from(file) + 0.5) / f64::from(files);
    let power = 1.0 - FILE_POWER;
    let (from, to) = (least.powf(power), greatest.powf(power));
    (from + at * (to - from)).powf(1.0 / power).round() as usize
}

/// The order in which files are asked for has nothing to do with their sizes.
fn place(file: u32, files: u32) -> u32 {
    // a prime above the most files, so that each has its place
    (u64::from(file) * 1_000_003 % u64::from(files)) as u32
}

/// The files, and what each load asks for: the same in the same order, of the server's address at its wire.
pub(super) fn write(folder: &Folder, files: u32) -> std::io::Result<()> {
    let www = folder.path("www");
    for file in 0..files {
        let folder = www.join(format!("{}", file / 1000));
        if file % 1000 == 0 {
            std::fs::create_dir_all(&folder)?;
        }
        let bytes = file_bytes(place(file, files), files);
        std::fs::write(folder.join(file.to_string()), vec![b'a' + (file % 26) as u8; bytes])?;
    }
    for wire in 0..folder.wires {
        let urls: String = (0..files).map(|file| format!("http://198.18.{wire}.1/{}/{file}\n", file / 1000)).collect();
        std::fs::write(folder.path(&format!("urls-{wire}")), urls)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_as_large_as_those_of_the_paper() {
        let files = 30_000;
        let mut sizes: Vec<usize> = (0..files).map(|file| file_bytes(place(file, files), files)).collect();
        let mean = sizes.iter().sum::<usize>() as f64 / f64::from(files);
        sizes.sort_unstable();
        assert!((690.0..710.0).contains(&mean), "{mean}");
        assert!((30..32).contains(&sizes[0]) && (5600..=5670).contains(&sizes[files as usize - 1]), "{sizes:?}");
        assert!((0..100).map(|file| place(file, 100)).collect::<std::collections::BTreeSet<_>>().len() == 100);
    }
}
