use super::*;

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

#[test]
fn canonical_order_is_that_of_rfc_4034_section_6_1() {
    let ordered = [
        "example",
        "a.example",
        "yljkjljk.a.example",
        "Z.a.example",
        "zABC.a.EXAMPLE",
        "z.example",
        "\\001.z.example",
        "*.z.example",
        "\\200.z.example",
    ];
    for pair in ordered.windows(2) {
        assert_eq!(name(pair[0]).canonical_cmp(name(pair[1]).view()), Ordering::Less, "{pair:?}");
    }
}
