//go:build !race

package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAProgramAsItShouldBePasses(t *testing.T) {
	var out bytes.Buffer
	err := check(write(t, "libmlx.dylib", library().bytes()), write(t, "engine", engine().bytes()), &out)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"macOS 14.0 or newer", "1 names of libmlx", "3 of the system's libc++", "@rpath/libmlx.dylib"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("said %q, want %q in it", out.String(), want)
		}
	}
}

func TestWhatWouldNotRunOnAMacIsSaid(t *testing.T) {
	for name, c := range map[string]struct {
		change func(program, mlx *file)
		says   string
	}{
		"a library, no program":              {change: func(p, _ *file) { p.kind = typeDylib }, says: "is no program"},
		"no entry point":                     {change: func(p, _ *file) { p.noMain = true }, says: "is no program"},
		"another processor":                  {change: func(p, _ *file) { p.cpu = 0x01000007 }, says: "is for CpuAmd64, want arm64"},
		"an iPhone's":                        {change: func(p, _ *file) { p.platform = 2 }, says: "not built for macOS"},
		"no version":                         {change: func(p, _ *file) { p.minimum = 0 }, says: "not built for macOS"},
		"a newer macOS":                      {change: func(p, _ *file) { p.minimum = 14<<16 | 1<<8 }, says: "wants macOS 14.1"},
		"not to be moved in memory":          {change: func(p, _ *file) { p.flags &^= flagPIE }, says: "anywhere in memory"},
		"one flat namespace":                 {change: func(p, _ *file) { p.flags &^= flagTwoLevel }, says: "in which library"},
		"not signed":                         {change: func(p, _ *file) { p.unsigned = true }, says: "signature is not good: it has none"},
		"the system's libc++ is not loaded":  {change: func(p, _ *file) { p.libraries[0] = "/usr/lib/libz.dylib" }, says: "does not load /usr/lib/libc++.1.dylib"},
		"libmlx is not loaded":               {change: func(p, _ *file) { p.libraries[1] = "/usr/lib/libz.dylib" }, says: "does not load @rpath/libmlx.dylib"},
		"a library of one machine":           {change: func(p, _ *file) { p.libraries[2] = "/opt/homebrew/lib/libmlx.dylib" }, says: "other Macs may not have"},
		"a run path is missing":              {change: func(p, _ *file) { p.rpaths = p.rpaths[:1] }, says: "looks for libmlx in"},
		"a run path of one machine":          {change: func(p, _ *file) { p.rpaths[0] = "/opt/homebrew/lib" }, says: "looks for libmlx in"},
		"a name that libmlx lacks":           {change: func(p, _ *file) { p.symbols[0].name = "__evall" }, says: "libmlx has no __evall"},
		"a name that libmlx keeps to itself": {change: func(p, _ *file) { p.symbols[0].name = "__hidden" }, says: "libmlx has no __hidden"},
		"a name looked up anywhere":          {change: func(p, _ *file) { p.symbols[0].ordinal = ordinalLookup }, says: "__eval is looked up in any library"},
		"a name of no library":               {change: func(p, _ *file) { p.symbols[0].ordinal = 9 }, says: "__eval is looked up in any library"},
		"a name of a newer libc++":           {change: func(p, _ *file) { p.symbols[2] = symbol{name: "__hash_memory", ordinal: 1} }, says: "the libc++ of macOS 14.0 is not known to have __hash_memory"},
		"the type of exceptions is its own":  {change: func(p, _ *file) { p.symbols[4] = symbol{name: caught()[0], defined: 0xf} }, says: "exceptions of libmlx would not be caught"},
		"libc++ is in it, hidden":            {change: func(p, _ *file) { p.symbols = append(p.symbols, symbol{name: "__Znwm", defined: 0x1e}) }, says: "defines __Znwm"},
		"libc++ is in it, stripped":          {change: func(p, _ *file) { p.text = "libc++abi: terminating" }, says: "a libc++ of its own"},
		"nothing of libmlx is used":          {change: func(p, _ *file) { p.symbols = p.symbols[1:] }, says: "built with the tag mlx"},
		"another libmlx is called otherwise": {change: func(_, m *file) { m.id = "/opt/libmlx.dylib" }, says: `libmlx is called "/opt/libmlx.dylib"`},
		"libmlx wants a newer macOS":         {change: func(_, m *file) { m.minimum = 15 << 16 }, says: "libmlx wants macOS 15.0"},
		"libmlx is not signed":               {change: func(_, m *file) { m.unsigned = true }, says: "libmlx has a code signature that is not good"},
		"libmlx is for another processor":    {change: func(_, m *file) { m.cpu = 0x01000007 }, says: "libmlx is no library for arm64"},
		"libmlx needs a library of its own":  {change: func(_, m *file) { m.libraries[1] = "@rpath/libjaccl.dylib" }, says: "libmlx loads @rpath/libjaccl.dylib"},
	} {
		p, m := engine(), library()
		c.change(&p, &m)
		err := check(write(t, "libmlx.dylib", m.bytes()), write(t, "engine", p.bytes()), io.Discard)
		if !errors.Is(err, errCheck) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: error %v, want one that says %q", name, err, c.says)
		}
	}
}

func TestAPageThatWasChangedAfterSigningIsFound(t *testing.T) {
	good := engine().bytes()
	lib := write(t, "libmlx.dylib", library().bytes())
	signature := bytes.LastIndex(good, []byte{0xfa, 0xde, 0x0c, 0xc0})
	for name, c := range map[string]struct {
		at   int
		says string
	}{
		"code":               {at: 5000, says: "page 1 was changed"},
		"the last page":      {at: signature - 1, says: "was changed after it was signed"},
		"a hash":             {at: len(good) - 1, says: "was changed after it was signed"},
		"the magic number":   {at: signature, says: "it begins with"},
		"the directory's":    {at: signature + 20, says: "no code directory"},
		"the kind of hashes": {at: signature + 20 + 37, says: "want SHA-256"},
		"the size of pages":  {at: signature + 20 + 39},
		"the number":         {at: signature + 20 + 31, says: "hashes for"},
		"the end of code":    {at: signature + 20 + 35, says: "of code, which has"},
		"where hashes begin": {at: signature + 20 + 16, says: "hashes for"},
	} {
		b := bytes.Clone(good)
		b[c.at] ^= 0x41
		err := check(lib, write(t, "engine", b), io.Discard)
		if !errors.Is(err, errCheck) || !strings.Contains(err.Error(), "signature is not good") || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: error %v, want one that says %q", name, err, c.says)
		}
	}
}

func TestDamagedFilesAreErrors(t *testing.T) {
	lib := write(t, "libmlx.dylib", library().bytes())
	good := engine().bytes()
	for n := range 600 {
		if err := check(lib, write(t, "engine", good[:n]), io.Discard); err == nil {
			t.Fatalf("the first %d bytes of a program passed", n)
		}
		b := bytes.Clone(good)
		binary.LittleEndian.PutUint32(b[n:], 0xffffffff)
		if err := check(lib, write(t, "engine", b), io.Discard); err == nil {
			t.Fatalf("a program with rubbish at %d passed", n)
		}
	}
	if err := check(lib, lib+".none", io.Discard); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: error %v", err)
	}
}

func TestStubsOfferWhatAppleBoundAndWhatGoImports(t *testing.T) {
	out := t.TempDir()
	if err := writeStubs(write(t, "libmlx.dylib", library().bytes()), "crypto/x509", out); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string][]string{
		"lib/libc++.1.tbd": {"install-name: '/usr/lib/libc++.1.dylib'", "'__ZTISt9exception'", "'__Znwm'", "'__ZdlPvm'"},
		"frameworks/Security.framework/Security.tbd": {
			"install-name: '/System/Library/Frameworks/Security.framework/Versions/A/Security'", "'_SecTrustEvaluateWithError'"},
		"frameworks/CoreFoundation.framework/CoreFoundation.tbd": {"'_CFRelease'"},
		"lib/libresolv.tbd": {"install-name: '/usr/lib/libresolv.9.dylib'", "'_res_9_nsearch'"},
	} {
		text, err := os.ReadFile(filepath.Join(out, path))
		if err != nil {
			t.Error(err)
			continue
		}
		for _, w := range want {
			if !strings.Contains(string(text), w) {
				t.Errorf("%s lacks %s:\n%s", path, w, text)
			}
		}
		if strings.Contains(string(text), "MTLCopy") {
			t.Errorf("%s offers what libmlx imports from elsewhere", path)
		}
	}
	if _, err := os.Stat(filepath.Join(out, "lib/libSystem.tbd")); err == nil {
		t.Error("a stub of libSystem would hide the compiler's")
	}
}
