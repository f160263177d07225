package cold

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strings"

	"metalfleet.dev/metalfleet/metal/kv"
)

// modelPrefix begins the names of folders of models.
const modelPrefix = "model-"

// ModelFolder is the folder of all namespaces of a model in the cache dir. An
// engine of that model reads and writes this one and no other.
func ModelFolder(dir, model string) string {
	sum := sha256.Sum256([]byte(model))
	return filepath.Join(dir, modelPrefix+hex.EncodeToString(sum[:]))
}

// IsModelFolder reports whether a name is that of a model's folder.
func IsModelFolder(name string) bool {
	sum, ok := strings.CutPrefix(name, modelPrefix)
	_, err := ParseNamespace(sum) // a digest as well
	return ok && err == nil
}

// Namespace is the digest of a kv.Origin. Each has a folder of its own in that of
// its model, so that what one kind of engine left behind goes as a whole.
type Namespace [32]byte

// NamespaceOf is where the blocks of an engine lie.
func NamespaceOf(o kv.Origin) Namespace { return Namespace(kv.Root(o, kv.Salt{})) }

// String is the name of the folder.
func (n Namespace) String() string { return hex.EncodeToString(n[:]) }

// ParseNamespace reads what String wrote.
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
	// Temporary is the folder in a namespace with one folder for each epoch.
	Temporary = "tmp"
	// OriginFile in a namespace says whose it is.
	OriginFile = "origin.json"
	digits     = "0123456789abcdef"
)

// Folder of a namespace in that of its model, which dir is here and in all that follow.
func Folder(dir string, n Namespace) string { return filepath.Join(dir, n.String()) }

// Shards are the names of the folders in a namespace that hold blocks.
func Shards() []string { return strings.Split(digits, "") }

// Path of a block.
func Path(dir string, n Namespace, k kv.Key) string {
	name := k.String()
	return filepath.Join(Folder(dir, n), name[:1], name+suffix)
}

// EpochFolder is where an engine writes before it renames. The owner of the
// folder makes it; an engine whose epoch it is not finds it missing.
func EpochFolder(dir string, n Namespace, epoch string) string {
	return filepath.Join(Folder(dir, n), Temporary, epoch)
}

// temporaryPath is where a block is written.
func temporaryPath(dir string, n Namespace, epoch string, k kv.Key) string {
	return filepath.Join(EpochFolder(dir, n, epoch), k.String()+suffix)
}

// ParseName is the key that a file of a shard is named after.
func ParseName(shard, name string) (kv.Key, bool) {
	base, ok := strings.CutSuffix(name, suffix)
	if !ok || base != strings.ToLower(base) {
		return kv.Key{}, false
	}
	k, err := kv.ParseKey(base)
	return k, err == nil && base[:1] == shard
}

// CheckEpoch refuses what could lead out of the folder of epochs.
func CheckEpoch(epoch string) error {
	if len(epoch) < 1 || len(epoch) > 64 || strings.Trim(epoch, digits+"ghijklmnopqrstuvwxyz-") != "" || epoch[0] == '-' {
		return fmt.Errorf("epoch %q, want 1 to 64 of a-z, 0-9 and -", epoch)
	}
	return nil
}
