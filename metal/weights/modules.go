package weights

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"metalfleet.dev/metalfleet/metal/folder"
)

// ModulesFile says of which modules a model that reads consists
// (sentence-transformers): the way from text to vector or score.
const ModulesFile = "modules.json"

// Bounds of it; real ones have under 1 kB and up to four modules.
const (
	MaxModulesBytes = 64 << 10
	maxModules      = 16
)

// Module is a step from text to vector or score.
type Module struct {
	// Kind is its class without the package, which has moved between versions.
	Kind string
	// Path is the folder of the module's configuration, directly in the model's
	// folder; empty if it is the model's own.
	Path string
}

// ConfigPath is the path of a module's configuration in the model's folder;
// empty for a module without a folder.
func (m Module) ConfigPath() string {
	if m.Path == "" {
		return ""
	}
	return m.Path + "/" + configFile
}

// Modules parses modules.json. It returns ErrInvalid if the text is malformed
// or names a folder that is not directly in the model's.
func Modules(text []byte) ([]Module, error) {
	var list []struct{ Type, Path string }
	switch {
	case len(text) > MaxModulesBytes:
		return nil, fmt.Errorf("%s has over %d bytes: %w", ModulesFile, MaxModulesBytes, ErrInvalid)
	case json.Unmarshal(text, &list) != nil:
		return nil, fmt.Errorf("%s is not a list of modules: %w", ModulesFile, ErrInvalid)
	case len(list) > maxModules:
		return nil, fmt.Errorf("%s lists %d modules, at most %d are supported: %w", ModulesFile, len(list), maxModules, ErrInvalid)
	}
	var out []Module
	for _, m := range list {
		if m.Path != "" && !folderName(m.Path) {
			return nil, fmt.Errorf("%s: folder %q is not a direct subfolder of the model's folder: %w", ModulesFile, clipped(m.Path), ErrInvalid)
		}
		out = append(out, Module{Kind: m.Type[strings.LastIndex(m.Type, ".")+1:], Path: m.Path})
	}
	return out, nil
}

// folderName reports whether a name may be that of a folder in ours.
func folderName(s string) bool {
	control := func(r rune) bool { return r < ' ' || r == 0x7f }
	return len(s) <= 64 && !strings.HasPrefix(s, ".") && !strings.ContainsAny(s, `/\`) && !strings.ContainsFunc(s, control)
}

// ModulesOf reads modules.json of a folder and checks that the sequence of
// modules is supported. It returns none if there is no such file,
// ErrUnsupported for unknown modules, ErrMissing if the configuration of one is
// missing.
func ModulesOf(dir *folder.Folder) ([]Module, error) {
	text, err := dir.Read(ModulesFile, MaxModulesBytes)
	if errors.Is(err, folder.ErrMissing) {
		return nil, nil
	}
	if err != nil {
		return nil, folderError(err)
	}
	modules, err := Modules(text)
	if err != nil {
		return nil, err
	}
	return modules, checkWay(dir, modules)
}

// follows are the modules that may follow one; an empty list ends the sequence.
func follows(kind string) []string {
	switch kind {
	case "":
		return []string{"Transformer"}
	case "Transformer":
		return []string{"Pooling", "LogitScore"}
	case "Pooling":
		return []string{"Normalize"}
	}
	return nil
}

func checkWay(dir *folder.Folder, modules []Module) error {
	before := ""
	for _, m := range modules {
		known := false
		for _, k := range follows(before) {
			known = known || k == m.Kind
		}
		if !known {
			return fmt.Errorf("%s: %w", ModulesFile, &UnsupportedError{Subject: "module", Value: clipped(m.Kind),
				Supported: []string{"Transformer and LogitScore", "Transformer and Pooling, optionally followed by Normalize"}})
		}
		if before = m.Kind; m.Kind != "Pooling" && m.Kind != "LogitScore" {
			continue // what is said of the others may be left out
		}
		if err := checkConfig(dir, m); err != nil {
			return fmt.Errorf("module %q: %w", m.Path, err)
		}
	}
	return nil
}

// checkConfig wants the configuration of a module.
func checkConfig(dir *folder.Folder, m Module) error {
	sub, err := dir.Sub(m.Path)
	if err != nil {
		return folderError(err)
	}
	defer sub.Close()
	if !sub.Has(configFile) {
		return fmt.Errorf("%s: %w", configFile, ErrMissing)
	}
	return nil
}

// clipped shortens what a file says for a message.
func clipped(s string) string {
	const most = 64
	if len(s) > most {
		return s[:most]
	}
	return s
}
