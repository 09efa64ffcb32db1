//! Opcodes of the base transport header, and what follows from each.

use std::fmt;

/// The transport service: the top three bits of an opcode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification: no transport at all.
    Cnp,
}

/// Where in its message a packet stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Position {
    /// The first of several.
    First,
    /// Neither first nor last.
    Middle,
    /// The last of several.
    Last,
    /// First and last at once.
    Only,
}

impl Position {
    /// Whether a message begins here.
    pub const fn is_start(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether a message ends here.
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

macro_rules! opcodes {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        /// An opcode. Those of RD, XRC and the manufacturers' range are not spoken here and do not parse;
        /// of the latter, 0xc0 announces a [`crate::Extension`] with the real opcode in it.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[allow(missing_docs, reason = "each name is the specification's own")]
        pub enum Opcode {
            $($name = $code,)*
        }

        impl Opcode {
            /// Every opcode, in numeric order.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The opcode with this number.
            pub const fn from_byte(byte: u8) -> Option<Self> {
                match byte {
                    $($code => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Its name, in the manner of the specification.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

opcodes! {
    RcSendFirst = 0x00, "RC SEND First";
    RcSendMiddle = 0x01, "RC SEND Middle";
    RcSendLast = 0x02, "RC SEND Last";
    RcSendLastImmediate = 0x03, "RC SEND Last with Immediate";
    RcSendOnly = 0x04, "RC SEND Only";
    RcSendOnlyImmediate = 0x05, "RC SEND Only with Immediate";
    RcWriteFirst = 0x06, "RC WRITE First";
    RcWriteMiddle = 0x07, "RC WRITE Middle";
    RcWriteLast = 0x08, "RC WRITE Last";
    RcWriteLastImmediate = 0x09, "RC WRITE Last with Immediate";
    RcWriteOnly = 0x0a, "RC WRITE Only";
    RcWriteOnlyImmediate = 0x0b, "RC WRITE Only with Immediate";
    RcReadRequest = 0x0c, "RC READ Request";
    RcReadResponseFirst = 0x0d, "RC READ Response First";
    RcReadResponseMiddle = 0x0e, "RC READ Response Middle";
    RcReadResponseLast = 0x0f, "RC READ Response Last";
    RcReadResponseOnly = 0x10, "RC READ Response Only";
    RcAcknowledge = 0x11, "RC Acknowledge";
    RcAtomicAcknowledge = 0x12, "RC ATOMIC Acknowledge";
    RcCompareSwap = 0x13, "RC CmpSwap";
    RcFetchAdd = 0x14, "RC FetchAdd";
    RcSendLastInvalidate = 0x16, "RC SEND Last with Invalidate";
    RcSendOnlyInvalidate = 0x17, "RC SEND Only with Invalidate";
    RcFlush = 0x1c, "RC FLUSH";
    RcAtomicWrite = 0x1d, "RC ATOMIC WRITE";
    UcSendFirst = 0x20, "UC SEND First";
    UcSendMiddle = 0x21, "UC SEND Middle";
    UcSendLast = 0x22, "UC SEND Last";
    UcSendLastImmediate = 0x23, "UC SEND Last with Immediate";
    UcSendOnly = 0x24, "UC SEND Only";
    UcSendOnlyImmediate = 0x25, "UC SEND Only with Immediate";
    UcWriteFirst = 0x26, "UC WRITE First";
    UcWriteMiddle = 0x27, "UC WRITE Middle";
    UcWriteLast = 0x28, "UC WRITE Last";
    UcWriteLastImmediate = 0x29, "UC WRITE Last with Immediate";
    UcWriteOnly = 0x2a, "UC WRITE Only";
    UcWriteOnlyImmediate = 0x2b, "UC WRITE Only with Immediate";
    UdSendOnly = 0x64, "UD SEND Only";
    UdSendOnlyImmediate = 0x65, "UD SEND Only with Immediate";
    Cnp = 0x81, "CNP";
}

impl Opcode {
    /// The transport service it belongs to.
    pub const fn transport(self) -> Transport {
        match (self as u8) >> 5 {
            0 => Transport::Rc,
            1 => Transport::Uc,
            3 => Transport::Ud,
            _ => Transport::Cnp,
        }
    }

    /// Where in its message the packet stands. Requests and answers of one packet are `Only`.
    pub const fn position(self) -> Position {
        match self {
            Self::RcSendFirst
            | Self::RcWriteFirst
            | Self::RcReadResponseFirst
            | Self::UcSendFirst
            | Self::UcWriteFirst => Position::First,
            Self::RcSendMiddle
            | Self::RcWriteMiddle
            | Self::RcReadResponseMiddle
            | Self::UcSendMiddle
            | Self::UcWriteMiddle => Position::Middle,
            Self::RcSendLast
            | Self::RcSendLastImmediate
            | Self::RcSendLastInvalidate
            | Self::RcWriteLast
            | Self::RcWriteLastImmediate
            | Self::RcReadResponseLast
            | Self::UcSendLast
            | Self::UcSendLastImmediate
            | Self::UcWriteLast
            | Self::UcWriteLastImmediate => Position::Last,
            _ => Position::Only,
        }
    }

    /// Whether it answers a request: READ responses and acknowledgements.
    pub const fn is_response(self) -> bool {
        matches!(self as u8, 0x0d..=0x12)
    }

    /// Whether it is part of a SEND of any service.
    pub const fn is_send(self) -> bool {
        matches!(self as u8 & 0x1f, 0x00..=0x05 | 0x16 | 0x17) && !matches!(self, Self::Cnp)
    }

    /// Whether it is part of a WRITE.
    pub const fn is_write(self) -> bool {
        matches!(self as u8 & 0x1f, 0x06..=0x0b)
    }

    /// Whether it is a READ response packet.
    pub const fn is_read_response(self) -> bool {
        matches!(self as u8, 0x0d..=0x10)
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
