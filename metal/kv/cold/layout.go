package cold

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strings"

	"metalfleet.dev/metalfleet/metal/kv"
)

// modelPrefix is the prefix of the names of model folders.
const modelPrefix = "model-"

// ModelFolder is the path of the folder with all namespaces of a model. An
// engine of that model uses only this folder.
func ModelFolder(dir, model string) string {
	sum := sha256.Sum256([]byte(model))
	return filepath.Join(dir, modelPrefix+hex.EncodeToString(sum[:]))
}

// IsModelFolder reports whether a name is that of a model folder.
func IsModelFolder(name string) bool {
	sum, ok := strings.CutPrefix(name, modelPrefix)
	_, err := ParseNamespace(sum) // a digest as well
	return ok && err == nil
}

// Namespace is the digest of a kv.Origin. Each namespace has its own folder in
// the model folder, so that the blocks of one kind of engine can be removed as
// a whole.
type Namespace [32]byte

// NamespaceOf returns the namespace of an engine's blocks.
func NamespaceOf(o kv.Origin) Namespace { return Namespace(kv.Root(o, kv.Salt{})) }

// String is the name of the folder.
func (n Namespace) String() string { return hex.EncodeToString(n[:]) }

// ParseNamespace parses the output of String.
func ParseNamespace(s string) (Namespace, error) {
	var n Namespace
	if len(s) != 2*len(n) || s != strings.ToLower(s) {
		return Namespace{}, fmt.Errorf("namespace %q, want %d hexadecimal digits", s, 2*len(n))
	}
	if _, err := hex.Decode(n[:], []byte(s)); err != nil {
		return Namespace{}, fmt.Errorf("namespace %q: %w", s, err)
	}
	return n, nil
}

const (
	// suffix of a block's file.
	suffix = ".kv"
	// Temporary is the folder of a namespace that has one folder for each
	// epoch.
	Temporary = "tmp"
	// OriginFile is the file of a namespace that describes its origin.
	OriginFile = "origin.json"
	digits     = "0123456789abcdef"
)

// Folder is the path of a namespace. dir is the model folder, here and in all
// functions that follow.
func Folder(dir string, n Namespace) string { return filepath.Join(dir, n.String()) }

// Shards are the names of the folders with blocks in a namespace.
func Shards() []string { return strings.Split(digits, "") }

// Path is the path of a block.
func Path(dir string, n Namespace, k kv.Key) string {
	name := k.String()
	return filepath.Join(Folder(dir, n), name[:1], name+suffix)
}

// EpochFolder is where an engine writes files before it renames them. The owner
// of the folder creates it; for an engine of another epoch it is missing.
func EpochFolder(dir string, n Namespace, epoch string) string {
	return filepath.Join(Folder(dir, n), Temporary, epoch)
}

// temporaryPath is where a block is written.
func temporaryPath(dir string, n Namespace, epoch string, k kv.Key) string {
	return filepath.Join(EpochFolder(dir, n, epoch), k.String()+suffix)
}

// ParseName returns the key of the block with this file name in a shard.
func ParseName(shard, name string) (kv.Key, bool) {
	base, ok := strings.CutSuffix(name, suffix)
	if !ok || base != strings.ToLower(base) {
		return kv.Key{}, false
	}
	k, err := kv.ParseKey(base)
	return k, err == nil && base[:1] == shard
}

// CheckEpoch refuses names that could lead out of the folder of epochs.
func CheckEpoch(epoch string) error {
	if len(epoch) < 1 || len(epoch) > 64 || strings.Trim(epoch, digits+"ghijklmnopqrstuvwxyz-") != "" || epoch[0] == '-' {
		return fmt.Errorf("epoch %q, want 1 to 64 of a-z, 0-9 and -", epoch)
	}
	return nil
}
