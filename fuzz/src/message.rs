//! Promises that every DNS answer keeps, judged by somebody else's parser.

use domain::base::Message;

/// Checks that `answer` is a whole, well-formed response that belongs to `question`.
///
/// # Panics
/// When it is not.
pub(crate) fn check_answer(question: &[u8], answer: &[u8]) {
    assert!(question.len() >= 12, "a question shorter than a header was answered");
    assert_eq!(question[2] & 0x80, 0, "a response was answered");
    assert_eq!(question[..2], answer[..2], "another identifier");
    assert_eq!(answer[2] & 0x80, 0x80, "the answer does not say that it is one");
    assert_eq!(question[2] & 0x78, answer[2] & 0x78, "another opcode");
    let message = Message::from_octets(answer).expect("an answer with a header");
    let counts = message.header_counts();
    let records = message.answer().expect("the question section can be read");
    let mut seen = 0;
    let mut section = Some(records);
    while let Some(mut records) = section {
        for record in records.by_ref() {
            record.expect("a record that can be read");
            seen += 1;
        }
        section = records.next_section().expect("the next section can be read");
    }
    let told = u32::from(counts.ancount()) + u32::from(counts.nscount()) + u32::from(counts.arcount());
    assert_eq!(seen, told, "records against the header's counts");
}
