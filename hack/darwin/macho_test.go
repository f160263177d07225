//go:build !race

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
)

// file is a Mach-O file to write, with the parts that are read here.
type file struct {
	kind, cpu, flags  uint32
	id                string
	platform, minimum uint32
	noMain            bool
	libraries         []string // all but the last are loaded, the last one weakly
	rpaths            []string
	symbols           []symbol
	unsigned          bool
	// text is put where code would be.
	text string
}

// symbol is a name and the ordinal of its library, or its type where it is
// defined.
type symbol struct {
	name    string
	ordinal int
	defined uint8
}

const (
	cpuARM64  = 0x0100000c
	typeExec  = 2
	typeDylib = 6
)

// bytes encodes the file: header, load commands, text, symbols, signature.
func (f file) bytes() []byte {
	le := binary.LittleEndian
	var table, names []byte
	names = append(names, 0)
	var undefined []byte
	var defined uint32
	for _, s := range f.symbols {
		entry := le.AppendUint32(nil, uint32(len(names)))
		names = append(append(names, s.name...), 0)
		if s.defined != 0 {
			entry = append(entry, s.defined, 1, 0, 0)
			table = append(table, le.AppendUint64(entry, 4096)...)
			defined++
			continue
		}
		entry = append(entry, typeExtern, 0, 0, byte(s.ordinal))
		undefined = append(undefined, le.AppendUint64(entry, 0)...)
	}
	table = append(table, undefined...)

	commands := f.commands()
	const tail = 24 + 80 + 16 // symbol table, dynamic one, signature
	at := uint32(32 + len(bytes.Join(commands, nil)) + tail)
	text := append([]byte(f.text), make([]byte, 8192)...)
	symbolsAt := at + uint32(len(text))
	namesAt := symbolsAt + uint32(len(table))
	signatureAt := namesAt + uint32(len(names))
	signature := make([]byte, signatureBytes(int(signatureAt)))
	commands = append(commands, words(2, 24, symbolsAt, uint32(len(f.symbols)), namesAt, uint32(len(names))))
	dynamic := words(0xb, 80, 0, 0, 0, defined, defined, uint32(len(undefined)/16))
	commands = append(commands, append(dynamic, make([]byte, 80-len(dynamic))...))
	if !f.unsigned {
		commands = append(commands, words(cmdCodeSignature, 16, signatureAt, uint32(len(signature))))
	}
	all := bytes.Join(commands, nil)
	out := append(words(0xfeedfacf, f.cpu, 0, f.kind, uint32(len(commands)), uint32(len(all)), f.flags, 0), all...)
	out = append(append(append(append(out, make([]byte, int(at)-len(out))...), text...), table...), names...)
	if f.unsigned {
		return out
	}
	return sign(out)
}

func (f file) commands() [][]byte {
	var out [][]byte
	if f.id != "" {
		out = append(out, named(cmdIDDylib, 24, f.id))
	}
	if !f.noMain && f.kind == typeExec {
		out = append(out, append(words(cmdMain, 24), make([]byte, 16)...))
	}
	out = append(out, words(cmdBuildVersion, 24, f.platform, f.minimum, 0, 0))
	for i, l := range f.libraries {
		cmd := uint32(0xc)
		if i == len(f.libraries)-1 {
			cmd = cmdLoadWeak
		}
		out = append(out, named(cmd, 24, l))
	}
	for _, r := range f.rpaths {
		out = append(out, named(0x8000001c, 12, r))
	}
	return out
}

func words(v ...uint32) []byte {
	var out []byte
	for _, w := range v {
		out = binary.LittleEndian.AppendUint32(out, w)
	}
	return out
}

// named returns a load command with a text at an offset.
func named(cmd, at uint32, text string) []byte {
	size := (at + uint32(len(text)) + 8) / 8 * 8
	out := append(words(cmd, size, at), make([]byte, at-12)...)
	return append(append(out, text...), make([]byte, size-at-uint32(len(text)))...)
}

func signatureBytes(code int) int { return 20 + directoryBytes + (code+4095)/4096*sha256.Size }

// sign appends a code directory over 4 KiB pages.
func sign(code []byte) []byte {
	be := binary.BigEndian
	pages := (len(code) + 4095) / 4096
	size := signatureBytes(len(code))
	b := make([]byte, 0, size)
	for _, w := range []uint32{magicSignature, uint32(size), 1, 0, 20} {
		b = be.AppendUint32(b, w)
	}
	for _, w := range []uint32{magicDirectory, uint32(size - 20), 0x20400, 2, directoryBytes, 0, 0, uint32(pages), uint32(len(code))} {
		b = be.AppendUint32(b, w)
	}
	b = append(b, sha256.Size, hashSHA256, 0, 12, 0, 0, 0, 0)
	for i := range pages {
		sum := sha256.Sum256(code[4096*i : min(4096*(i+1), len(code))])
		b = append(b, sum[:]...)
	}
	return append(code, b...)
}

// library returns a libmlx that imports what a bridge needs, and exports two functions.
func library() file {
	f := file{kind: typeDylib, cpu: cpuARM64, id: libmlx, platform: platformMacOS, minimum: newest, flags: flagTwoLevel,
		libraries: []string{libcxx, "/System/Library/Frameworks/Metal.framework/Versions/A/Metal", "/usr/lib/libobjc.A.dylib"},
		symbols:   []symbol{{name: "__eval", defined: 0xf}, {name: "__add", defined: 0xf}, {name: "__hidden", defined: 0x1f}, {name: "_MTLCopy", ordinal: 2}}}
	for _, name := range append(caught(), "__Znwm") {
		f.symbols = append(f.symbols, symbol{name: name, ordinal: 1})
	}
	return f
}

// engine returns a valid program.
func engine() file {
	f := file{kind: typeExec, cpu: cpuARM64, platform: platformMacOS, minimum: newest, flags: flagTwoLevel | flagPIE,
		libraries: []string{libcxx, libmlx, "/usr/lib/libSystem.B.dylib", "/System/Library/Frameworks/Security.framework/Versions/A/Security"},
		rpaths:    []string{"@executable_path", "@executable_path/../lib"},
		symbols:   []symbol{{name: "__eval", ordinal: 2}, {name: "_main", defined: 0xf}, {name: "_malloc", ordinal: 3}, {name: "_SecTrust", ordinal: 4}}}
	for _, name := range caught() {
		f.symbols = append(f.symbols, symbol{name: name, ordinal: 1})
	}
	return f
}

func write(t *testing.T, name string, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, b, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}
