package main

import (
	"bytes"
	"context"
	"debug/elf"
	"debug/macho"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// oldest macOS that install.sh accepts; a test of config/macos compares it with MLX's
// wheel, and one here with install.sh.
const oldest = 14

// machO is the part that a Mac's loader reads first.
type machO struct {
	cpu               macho.Cpu
	minimum           uint32 // macOS, as 0xMMMMmmpp
	libraries, rpaths []string
}

func readMachO(body []byte) (machO, error) {
	f, err := macho.NewFile(bytes.NewReader(body))
	if err != nil {
		return machO{}, err
	}
	m := machO{cpu: f.Cpu}
	for _, l := range f.Loads {
		switch l := l.(type) {
		case *macho.Dylib:
			m.libraries = append(m.libraries, l.Name)
		case *macho.Rpath:
			m.rpaths = append(m.rpaths, l.Path)
		default:
			const buildVersion = 0x32 // LC_BUILD_VERSION
			if b := l.Raw(); len(b) >= 16 && f.ByteOrder.Uint32(b) == buildVersion {
				m.minimum = f.ByteOrder.Uint32(b[12:])
			}
		}
	}
	return m, nil
}

// darwin checks a program for Macs. Only the engine loads a library that macOS lacks:
// libmlx, from the same folder.
func (c *checker) darwin(what string, body []byte, arch string, isEngine bool) {
	m, err := readMachO(body)
	if err != nil {
		c.add("%s: %v", what, err)
		return
	}
	if want := map[string]macho.Cpu{"arm64": macho.CpuArm64, "amd64": macho.CpuAmd64}[arch]; m.cpu != want {
		c.add("%s is for %s, want %s", what, m.cpu, want)
	}
	if m.minimum == 0 || m.minimum > oldest<<16 {
		c.add("%s asks for macOS %d.%d, install.sh for %d", what, m.minimum>>16, m.minimum>>8&0xff, oldest)
	}
	hasMLX := slices.Contains(m.libraries, "@rpath/libmlx.dylib")
	if hasMLX != isEngine || isEngine && !slices.Contains(m.rpaths, "@executable_path") {
		c.add("%s: libraries %q, run paths %q: it would not find libmlx in its own folder, or needs none", what, m.libraries, m.rpaths)
	}
	for _, l := range m.libraries {
		if l != "@rpath/libmlx.dylib" && !strings.HasPrefix(l, "/usr/lib/") && !strings.HasPrefix(l, "/System/") {
			c.add("%s loads %s, which macOS does not have", what, l)
		}
	}
	c.says(what, body)
}

// says looks for the version that the linker was given; a program for this machine is also
// run with --version.
func (c *checker) says(what string, body []byte) {
	if !bytes.Contains(body, []byte(c.version)) {
		c.add("%s does not say %s", what, c.version)
	}
}

// linux checks a program for Linux: no loader, no libraries.
func (c *checker) linux(what string, body []byte, arch string) {
	f, err := elf.NewFile(bytes.NewReader(body))
	if err != nil {
		c.add("%s: %v", what, err)
		return
	}
	if want := map[string]elf.Machine{"arm64": elf.EM_AARCH64, "amd64": elf.EM_X86_64}[arch]; f.Machine != want {
		c.add("%s is for %s, want %s", what, f.Machine, want)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			c.add("%s is not static", what)
		}
	}
	c.says(what, body)
}

// runs starts a program here and requires the version in its output.
func (c *checker) runs(ctx context.Context, what string, body []byte, args ...string) {
	dir, err := os.MkdirTemp("", "release")
	if err != nil {
		c.add("%s: %v", what, err)
		return
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "tried")
	if err := os.WriteFile(file, body, 0o755); err != nil {
		c.add("%s: %v", what, err)
		return
	}
	said, err := output(ctx, c.root, nil, file, args...)
	if err != nil || !slices.Contains(strings.Fields(said), c.version) {
		c.add("%s: asked for its version it says %q (%v), want %s", what, said, err, c.version)
	}
}
