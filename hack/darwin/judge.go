package main

import (
	"bytes"
	"debug/macho"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

const (
	// libmlx is the name that the program loads: its run paths lead to its own folder and
	// to ../lib.
	libmlx = "@rpath/libmlx.dylib"
	// newest is the maximum macOS version that the program may require: 14.0.
	newest = 14 << 16
	// listed is the maximum number of errors in the output.
	listed = 25

	flagTwoLevel = 0x80     // imports name their library
	flagPIE      = 0x200000 // arm64 runs nothing else
)

// caught returns the names of libc++ that catching an exception of libmlx depends on: the
// type that a catch compares by address, and the functions that find the catch.
func caught() []string {
	return []string{"__ZTISt9exception", "___gxx_personality_v0", "___cxa_begin_catch"}
}

// errCheck means that a program would not work on a Mac.
var errCheck = errors.New("would not run well on a Mac")

// check reads a program and the libmlx it was linked against, and prints its findings; the
// error lists what is wrong.
func check(mlxPath, path string, out io.Writer) error {
	mlx, err := readImage(mlxPath)
	if err != nil {
		return err
	}
	program, err := readImage(path)
	if err != nil {
		return err
	}
	faults := append(judge(program, mlx), judgeLibrary(mlx)...)
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read program: %w", err)
	}
	if bytes.Contains(text, []byte("libc++abi: ")) {
		faults = append(faults, "holds a libc++ of its own: link with the stub of the system's")
	}
	if more := len(faults) - listed; more > 0 {
		faults = append(faults[:listed], fmt.Sprintf("and %d more", more))
	}
	if len(faults) > 0 {
		return fmt.Errorf("%s %w:\n  %s", path, errCheck, strings.Join(faults, "\n  "))
	}
	_, err = fmt.Fprintf(out, "%s: arm64, macOS %s or newer, %d bytes, signed ad hoc and whole\nloads %s\nimports %d names of libmlx, which has them all, and %d of the system's libc++, %s among them\n",
		path, version(program.minimum), len(text), strings.Join(program.libraries, ", "), count(program, libmlx), count(program, libcxx), strings.Join(caught(), ", "))
	return err
}

func version(v uint32) string { return fmt.Sprintf("%d.%d", v>>16, v>>8&0xff) }

func count(m *image, library string) int {
	n := 0
	for _, i := range m.imports {
		if i.library == library {
			n++
		}
	}
	return n
}

// judge lists what is wrong with a program that was linked against mlx.
func judge(p, mlx *image) []string {
	var faults []string
	fault := func(wrong bool, format string, args ...any) {
		if wrong {
			faults = append(faults, fmt.Sprintf(format, args...))
		}
	}
	fault(p.kind != macho.TypeExec || !p.starts, "is no program: its type is %v", p.kind)
	fault(p.cpu != macho.CpuArm64, "is for %v, want arm64", p.cpu)
	fault(p.platform != platformMacOS || p.minimum == 0, "is not built for macOS: its platform is %d", p.platform)
	fault(p.minimum > newest, "wants macOS %s, want %s at most", version(p.minimum), version(newest))
	fault(p.flag&flagPIE == 0, "cannot be loaded anywhere in memory, as arm64 wants it")
	fault(p.flag&flagTwoLevel == 0, "does not say in which library its imports are")
	fault(p.signature != nil, "its code signature is not good: %v", p.signature)
	for _, need := range []string{libcxx, libmlx} {
		fault(!slices.Contains(p.libraries, need), "does not load %s", need)
	}
	for _, l := range p.libraries {
		system := strings.HasPrefix(l, "/usr/lib/") || strings.HasPrefix(l, "/System/Library/")
		fault(!system && l != libmlx, "loads %s, which other Macs may not have", l)
	}
	want := []string{"@executable_path", "@executable_path/../lib"}
	fault(!slices.Equal(p.rpaths, want), "looks for libmlx in %q, want %q", p.rpaths, want)
	return append(faults, judgeImports(p, mlx)...)
}

// judgeImports lists what is wrong with the names that a program imports and
// defines.
func judgeImports(p, mlx *image) []string {
	var faults []string
	libc := offered(mlx)
	found := map[imported]bool{}
	for _, i := range p.imports {
		found[i] = true
		switch {
		case i.library == "":
			faults = append(faults, fmt.Sprintf("%s is looked up in any library: link without -undefined dynamic_lookup", i.name))
		case i.library == libmlx && !mlx.exports[i.name]:
			faults = append(faults, fmt.Sprintf("libmlx has no %s", i.name))
		case i.library == libcxx && !libc[i.name]:
			faults = append(faults, fmt.Sprintf("the libc++ of macOS %s is not known to have %s", version(newest), i.name))
		}
	}
	for _, name := range caught() {
		if !found[imported{name, libcxx}] {
			faults = append(faults, fmt.Sprintf("does not import %s from %s: exceptions of libmlx would not be caught", name, libcxx))
		}
	}
	if count(p, libmlx) == 0 {
		faults = append(faults, "imports nothing from libmlx: was it built with the tag mlx?")
	}
	for _, defined := range []map[string]bool{p.exports, p.locals} {
		for name := range defined {
			if libc[name] {
				faults = append(faults, fmt.Sprintf("defines %s, which is the system's libc++'s", name))
			}
		}
	}
	slices.Sort(faults)
	return faults
}

// judgeLibrary lists what is wrong with the libmlx that goes into the archive.
func judgeLibrary(m *image) []string {
	var faults []string
	fault := func(wrong bool, format string, args ...any) {
		if wrong {
			faults = append(faults, "libmlx "+fmt.Sprintf(format, args...))
		}
	}
	fault(m.kind != macho.TypeDylib || m.cpu != macho.CpuArm64, "is no library for arm64")
	fault(m.id != libmlx, "is called %q, want %s", m.id, libmlx)
	fault(m.platform != platformMacOS || m.minimum > newest, "wants macOS %s, want %s at most", version(m.minimum), version(newest))
	fault(m.signature != nil, "has a code signature that is not good: %v", m.signature)
	for _, l := range m.libraries {
		fault(strings.HasPrefix(l, "@"), "loads %s, which is not in the archive", l)
	}
	return faults
}
