//! Reads the few fields of a Parquet page header that bound what a decoder allocates.
//!
//! Thrift compact protocol, as in parquet-format's `PageHeader`: field 1 type, 2 uncompressed
//! size, 3 compressed size, 5/7/8 the header of a data page, a dictionary page, a data page v2,
//! whose field 1 is the number of values. Everything else is skipped. Total on any bytes.

/// What a page header claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageHeader {
    /// Bytes of the header itself.
    pub header_bytes: u64,
    /// Bytes of the page as stored.
    pub compressed_bytes: u64,
    /// Bytes of the page when decompressed.
    pub uncompressed_bytes: u64,
    /// Values, nulls included.
    pub values: u64,
    /// Whether it is a dictionary page.
    pub dictionary: bool,
}

/// Structs within structs deeper than this are refused: page headers have three levels.
const DEPTH_MAX: usize = 8;

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// Parses a page header at the start of `bytes`; `None` where it is malformed or longer than they.
pub(crate) fn page_header(bytes: &[u8]) -> Option<PageHeader> {
    let mut reader = Reader { bytes, at: 0 };
    let mut header = PageHeader::default();
    let (mut kind, mut compressed, mut uncompressed, mut values) = (None, None, None, None);
    let mut field = 0_i16;
    while let Some(wire) = reader.field(&mut field)? {
        match (field, wire) {
            (1, 5) => kind = Some(reader.zigzag()?),
            (2, 5) => uncompressed = Some(u64::try_from(reader.zigzag()?).ok()?),
            (3, 5) => compressed = Some(u64::try_from(reader.zigzag()?).ok()?),
            (5 | 7 | 8, 12) => {
                header.dictionary = field == 7;
                values = Some(reader.first_i32()?);
            }
            _ => reader.skip(wire, 0)?,
        }
    }
    // 0 data page, 1 index page, 2 dictionary page, 3 data page v2.
    let expected_kind = if header.dictionary { kind == Some(2) } else { kind != Some(2) };
    if !expected_kind {
        return None;
    }
    header.header_bytes = reader.at as u64;
    header.compressed_bytes = compressed?;
    header.uncompressed_bytes = uncompressed?;
    header.values = if kind == Some(1) { 0 } else { values? };
    Some(header)
}

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn zigzag(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// The next field's wire type; `Some(None)` at the end of a struct.
    fn field(&mut self, field: &mut i16) -> Option<Option<u8>> {
        let byte = self.byte()?;
        if byte == 0 {
            return Some(None);
        }
        let delta = i16::from(byte >> 4);
        *field = match delta {
            0 => i16::try_from(self.zigzag()?).ok()?,
            _ => field.checked_add(delta)?,
        };
        Some(Some(byte & 0x0f))
    }

    /// Field 1 of a struct, an i32; the rest of the struct is skipped.
    fn first_i32(&mut self) -> Option<u64> {
        let (mut field, mut found) = (0, None);
        while let Some(wire) = self.field(&mut field)? {
            if field == 1 && wire == 5 {
                found = Some(u64::try_from(self.zigzag()?).ok()?);
            } else {
                self.skip(wire, 1)?;
            }
        }
        found
    }

    fn skip(&mut self, wire: u8, depth: usize) -> Option<()> {
        if depth > DEPTH_MAX {
            return None;
        }
        match wire {
            1 | 2 => Some(()),
            3 => self.byte().map(drop),
            4..=6 => self.varint().map(drop),
            7 => self.advance(8),
            8 => {
                let length = usize::try_from(self.varint()?).ok()?;
                self.advance(length)
            }
            9 | 10 => {
                let head = self.byte()?;
                let count = match head >> 4 {
                    15 => self.varint()?,
                    count => u64::from(count),
                };
                for _ in 0..count {
                    // Booleans in lists take a byte each; every element moves or ends the reader.
                    match head & 0x0f {
                        1 | 2 => self.byte().map(drop)?,
                        wire => self.skip(wire, depth + 1)?,
                    }
                }
                Some(())
            }
            12 => {
                let mut field = 0;
                while let Some(wire) = self.field(&mut field)? {
                    self.skip(wire, depth + 1)?;
                }
                Some(())
            }
            _ => None,
        }
    }

    fn advance(&mut self, count: usize) -> Option<()> {
        let next = self.at.checked_add(count)?;
        (next <= self.bytes.len()).then(|| self.at = next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_data_page_header_is_read() {
        // type 0, uncompressed 300, compressed 100, data page header {values 20, encodings}.
        let bytes = [
            0x15, 0x00, 0x15, 0xd8, 0x04, 0x15, 0xc8, 0x01, 0x2c, 0x15, 0x28, 0x15, 0x00, 0x00,
            0x00, 0xff,
        ];
        let header = page_header(&bytes).unwrap();
        assert_eq!((header.uncompressed_bytes, header.compressed_bytes), (300, 100));
        assert_eq!((header.values, header.header_bytes, header.dictionary), (20, 15, false));
        assert!(page_header(&bytes[..14]).is_none(), "cut");
    }

    proptest! {
        #[test]
        fn any_bytes_end_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(header) = page_header(&bytes) {
                prop_assert!(header.header_bytes <= bytes.len() as u64);
            }
        }
    }
}
