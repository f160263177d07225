package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// Numbers of Apple's kern/cs_blobs.h; its fields are big-endian.
const (
	magicSignature = 0xfade0cc0
	magicDirectory = 0xfade0c02
	hashSHA256     = 2
	flagAdhoc      = 2
	// directoryBytes is the part of a code directory that every version has.
	directoryBytes = 44
)

// checkSignature compares the hashes of a code signature, size bytes at the
// offset at, with the pages of the file: the kernel of a Mac with Apple Silicon
// kills a program whose pages do not match, or that has no signature.
func checkSignature(raw []byte, at, size int64) error {
	if at < 0 || size < 12 || at > int64(len(raw))-size {
		return fmt.Errorf("it lies at %d+%d in a file of %d bytes", at, size, len(raw))
	}
	b, be := raw[at:at+size], binary.BigEndian
	if be.Uint32(b) != magicSignature {
		return fmt.Errorf("it begins with %#x", be.Uint32(b))
	}
	for i := range int64(be.Uint32(b[8:])) {
		entry := 12 + 8*i
		if entry+8 > size {
			return errors.New("its index is cut off")
		}
		blob := int64(be.Uint32(b[entry+4:]))
		if blob+directoryBytes > size || be.Uint32(b[blob:]) != magicDirectory {
			continue
		}
		return checkDirectory(b[blob:], raw[:at])
	}
	return errors.New("it has no code directory")
}

// checkDirectory compares the hashes of a code directory with the code, which
// ends where the signature begins.
func checkDirectory(d, code []byte) error {
	be := binary.BigEndian
	hashes, slots, limit := int64(be.Uint32(d[16:])), int64(be.Uint32(d[28:])), int64(be.Uint32(d[32:]))
	if d[36] != sha256.Size || d[37] != hashSHA256 || d[39] == 0 || d[39] > 20 {
		return fmt.Errorf("hashes of kind %d with %d bytes, pages of 2^%d: want SHA-256", d[37], d[36], d[39])
	}
	page := int64(1) << d[39]
	if limit != int64(len(code)) || slots != (limit+page-1)/page || hashes+slots*sha256.Size > int64(len(d)) {
		return fmt.Errorf("%d hashes for %d bytes of code, which has %d", slots, limit, len(code))
	}
	for i := range slots {
		sum := sha256.Sum256(code[i*page : min((i+1)*page, limit)])
		if want := d[hashes+i*sha256.Size:]; !bytes.Equal(sum[:], want[:sha256.Size]) {
			return fmt.Errorf("page %d was changed after it was signed", i)
		}
	}
	return nil
}
