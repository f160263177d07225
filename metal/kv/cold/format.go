package cold

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cespare/xxhash/v2"

	"metalfleet.dev/metalfleet/metal/kv"
)

// version of the format. Readers of older versions may be added; files of any
// other version are foreign.
const version = 1

// HeaderBytes is the length of a header. The payload follows it and ends the
// file.
const HeaderBytes = 128

// MaxPayloadBytes bounds one block: no more is allocated, even if a file claims
// more.
const MaxPayloadBytes = 16 << 30

// clusterBytes is the allocation unit of a disk.
const clusterBytes = 4096

var magic = [8]byte{'M', 'F', 'K', 'V', 'C', 'O', 'L', 'D'}

// ErrForeign means that a file does not have this format and version.
var ErrForeign = errors.New("not a cache block of this version")

// Header describes a file: 128 bytes, little endian.
//
//	0 magic  8 version  12 header bytes  16 payload bytes  24 key
//	56 namespace  88 checksum of the payload  96 zeros  120 checksum of 0..119
//
// Checksums are XXH64.
type Header struct {
	Key          kv.Key
	Namespace    Namespace
	PayloadBytes int64
	Sum          uint64
}

// Encode returns the bytes of the header.
func (h Header) Encode() [HeaderBytes]byte {
	var b [HeaderBytes]byte
	copy(b[:], magic[:])
	binary.LittleEndian.PutUint32(b[8:], version)
	binary.LittleEndian.PutUint32(b[12:], HeaderBytes)
	binary.LittleEndian.PutUint64(b[16:], uint64(h.PayloadBytes))
	copy(b[24:], h.Key[:])
	copy(b[56:], h.Namespace[:])
	binary.LittleEndian.PutUint64(b[88:], h.Sum)
	binary.LittleEndian.PutUint64(b[120:], xxhash.Sum64(b[:120]))
	return b
}

// ParseHeader parses the header at the beginning of b. It returns ErrForeign
// for other formats, and kv.ErrCorrupt for a damaged header of this format.
func ParseHeader(b []byte) (Header, error) {
	if len(b) < HeaderBytes || [8]byte(b) != magic {
		return Header{}, ErrForeign
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != version {
		return Header{}, fmt.Errorf("version %d, want %d: %w", v, version, ErrForeign)
	}
	if binary.LittleEndian.Uint64(b[120:]) != xxhash.Sum64(b[:120]) {
		return Header{}, fmt.Errorf("header: %w", kv.ErrCorrupt)
	}
	payload := binary.LittleEndian.Uint64(b[16:])
	switch {
	case binary.LittleEndian.Uint32(b[12:]) != HeaderBytes, [24]byte(b[96:]) != [24]byte{}:
		return Header{}, fmt.Errorf("unknown fields in a header of version %d: %w", version, ErrForeign)
	case payload > MaxPayloadBytes:
		return Header{}, fmt.Errorf("a payload of %d bytes: %w", payload, kv.ErrCorrupt)
	}
	return Header{
		Key: kv.Key(b[24:]), Namespace: Namespace(b[56:]), PayloadBytes: int64(payload),
		Sum: binary.LittleEndian.Uint64(b[88:]),
	}, nil
}

// FileBytes is the length of the file of a payload.
func FileBytes(payload int64) int64 { return HeaderBytes + payload }

// maxFile is the largest file that Takes counts, so that no size overflows: an engine that was taken
// over sets that of its files, without their space, to what it likes.
const maxFile = 1 << 60

// Takes is the disk space of a file of this length, in whole clusters.
func Takes(file int64) int64 {
	return (min(file, maxFile) + clusterBytes - 1) / clusterBytes * clusterBytes
}
