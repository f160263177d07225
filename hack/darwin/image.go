package main

import (
	"bytes"
	"debug/macho"
	"encoding/binary"
	"fmt"
	"os"
	"strings"
)

// Numbers of Apple's mach-o/loader.h that debug/macho has no name for.
const (
	cmdIDDylib       = 0xd
	cmdLoadWeak      = 0x80000018
	cmdReexport      = 0x8000001f
	cmdLazyLoad      = 0x20
	cmdLoadUpward    = 0x80000023
	cmdMain          = 0x80000028
	cmdBuildVersion  = 0x32
	cmdCodeSignature = 0x1d

	platformMacOS = 1

	typeStab    = 0xe0 // of a symbol: it is for debuggers
	typeMask    = 0x0e
	typePrivate = 0x10
	typeExtern  = 0x01

	ordinalSelf   = 0 // where an import is bound to no library by name
	ordinalMain   = 0xff
	ordinalLookup = 0xfe
)

// image is the part of a linked Mach-O file that the loader reads.
type image struct {
	kind macho.Type
	cpu  macho.Cpu
	flag uint32
	// id is the name under which a library is linked.
	id string
	// platform and minimum are the system it was built for: a number of
	// mach-o/loader.h, and a version as 0xMMMMmmpp.
	platform, minimum uint32
	// starts is true if it has an entry point.
	starts bool
	// libraries in the order of their ordinals, and run paths.
	libraries, rpaths []string
	imports           []imported
	// exports are the names that other images can bind to; locals the other
	// names that it defines, as far as they were not stripped.
	exports, locals map[string]bool
	// signature is the error of the code signature; nil means that it is valid.
	signature error
}

// imported is a name that the loader looks up, and the library to look in; empty means any.
type imported struct{ name, library string }

// readImage reads a program or a library for one processor.
func readImage(path string) (*image, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read image: %w", err)
	}
	f, err := macho.NewFile(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("%s is not a Mach-O file for one processor: %w", path, err)
	}
	m := &image{kind: f.Type, cpu: f.Cpu, flag: f.Flags, exports: map[string]bool{}, locals: map[string]bool{},
		signature: fmt.Errorf("it has none")}
	for _, l := range f.Loads {
		if err := m.load(f.ByteOrder, l, raw); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	if f.Symtab != nil {
		for _, s := range f.Symtab.Syms {
			m.symbol(s)
		}
	}
	return m, nil
}

// load reads one load command.
func (m *image) load(order binary.ByteOrder, l macho.Load, raw []byte) error {
	switch l := l.(type) {
	case *macho.Dylib:
		m.libraries = append(m.libraries, l.Name)
		return nil
	case *macho.Rpath:
		m.rpaths = append(m.rpaths, l.Path)
		return nil
	}
	b := l.Raw()
	switch cmd := order.Uint32(b); cmd {
	case cmdIDDylib, cmdLoadWeak, cmdReexport, cmdLazyLoad, cmdLoadUpward:
		if len(b) < 12 || int64(order.Uint32(b[8:])) >= int64(len(b)) {
			return fmt.Errorf("load command %#x is cut off", cmd)
		}
		name, _, _ := strings.Cut(string(b[order.Uint32(b[8:]):]), "\x00")
		if cmd == cmdIDDylib {
			m.id = name
		} else {
			m.libraries = append(m.libraries, name)
		}
	case cmdMain:
		m.starts = true
	case cmdBuildVersion:
		if len(b) < 16 {
			return fmt.Errorf("load command %#x is cut off", cmd)
		}
		m.platform, m.minimum = order.Uint32(b[8:]), order.Uint32(b[12:])
	case cmdCodeSignature:
		if len(b) < 16 {
			return fmt.Errorf("load command %#x is cut off", cmd)
		}
		m.signature = checkSignature(raw, int64(order.Uint32(b[8:])), int64(order.Uint32(b[12:])))
	}
	return nil
}

func (m *image) symbol(s macho.Symbol) {
	switch {
	case s.Type&typeStab != 0:
	case s.Type&typeMask != 0:
		if s.Type&typeExtern != 0 && s.Type&typePrivate == 0 {
			m.exports[s.Name] = true
		} else {
			m.locals[s.Name] = true
		}
	default:
		i := imported{name: s.Name}
		if at := int(s.Desc >> 8); at != ordinalSelf && at != ordinalMain && at != ordinalLookup && at <= len(m.libraries) {
			i.library = m.libraries[at-1]
		}
		m.imports = append(m.imports, i)
	}
}
