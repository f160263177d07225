// Package wire is the protocol between the agent and its engines: gRPC over a
// Unix socket, described in wire.proto, and the configuration file that an
// engine is started with.
//
// It owns the version of that protocol and the identity of an engine's
// configuration (Config.Hash), by which an agent knows after its own restart
// that a living process is the one it wants. It refuses a configuration with
// unknown fields or impossible limits, and a process of another user at the
// other end. It knows no model, no tensor and no Kubernetes.
//
// Start reading at Config, then wire.proto; peer.go has who may speak.
package wire

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"metalfleet.dev/metalfleet/metal/excerpt"
)

// ProtocolVersion is the newest version this package speaks.
const ProtocolVersion = 1

// MaxMessageBytes bounds one message; a chat history is one message.
const MaxMessageBytes = 64 << 20

// maxHeaderList bounds the headers and trailers of an answer, which hold a refusal: the longest of Refuse
// has 7 KiB. gRPC decodes them for each call and keeps them until the answer is read, its details in 45 times
// their bytes, and no budget counts that.
const maxHeaderList = 8 << 10

// window bounds what an engine may send of an answer before the agent reads it, in bytes. There are as
// many answers as requests, and gRPC would let each grow to 16 MiB. connWindow bounds what a whole
// connection has on its way; a stream that is not read takes none of it.
const (
	window     = 256 << 10
	connWindow = 16 * window
)

// MaxSpelled bounds the text of a token in a log-probability, in bytes. Each token of an
// answer has up to 21 of them, and the longest tokens of real vocabularies some hundred bytes.
const MaxSpelled = 1 << 10

// Config is what an engine process is started with, as a JSON file.
type Config struct {
	// ReplicaUID and Epoch are the assignment that the process serves.
	ReplicaUID string `json:"replicaUID"`
	Epoch      int64  `json:"epoch"`
	// Namespace of the deployment. It is empty in the configurations of earlier agents.
	Namespace string `json:"namespace,omitempty"`
	// ModelPath is a GGUF file or a model folder.
	ModelPath string `json:"modelPath"`
	// ModelDigest names the weights (model.Record.Digest).
	ModelDigest string `json:"modelDigest"`
	// Backend is "ref" or "mlx"; empty means the best one compiled in.
	Backend string `json:"backend,omitempty"`
	// Activations are what the back end "ref" rounds activations to before
	// they meet quantised weights: "float32", also meant by nothing, or "8bit".
	Activations string `json:"activations,omitempty"`
	// ContextTokens is the longest request, prompt and answer together.
	ContextTokens int64 `json:"contextTokens"`
	// Sequences is how many requests run at once at most.
	Sequences int64 `json:"sequences"`
	// CacheTokens is how many tokens of KV all running requests share.
	CacheTokens int64 `json:"cacheTokens"`
	// LimitBytes is the process's own memory ceiling.
	LimitBytes int64 `json:"limitBytes"`
	// CacheQueueBytes of memory may hold what waits to be written to this Mac's
	// disk; 0 means that nothing is.
	CacheQueueBytes int64 `json:"cacheQueueBytes,omitempty"`
	// Task is what the model is to do (model.Task); empty takes what it says
	// itself.
	Task string `json:"task,omitempty"`
	// CacheDir is the folder of the model in this Mac's disk cache, which the
	// process may write; empty without one.
	CacheDir string `json:"cacheDir,omitempty"`
	// Sandbox says whether the process confines itself; empty means SandboxAuto.
	Sandbox Sandbox `json:"sandbox,omitempty"`
	// SharedPrefixes are texts with which prompts or system messages of any tenant may
	// begin: the prefix cache of these beginnings serves all tenants within SharedScope,
	// which is the namespace of the deployment.
	SharedPrefixes []string `json:"sharedPrefixes,omitempty"`
	SharedScope    string   `json:"sharedScope,omitempty"`
	// ChatTemplate replaces the chat templates of the model; empty means its own.
	ChatTemplate string `json:"chatTemplate,omitempty"`
	// Sampling has defaults and limits of requests; nil means none.
	Sampling *SamplingPolicy `json:"sampling,omitempty"`
	// Adapters of the model that requests may name.
	Adapters []Adapter `json:"adapters,omitempty"`
}

// SamplingPolicy has the values that apply where a request states none, and the limits of
// what it may state. Nil and 0 mean none.
type SamplingPolicy struct {
	Temperature       *float64 `json:"temperature,omitempty"`
	TopP              *float64 `json:"topP,omitempty"`
	TopK              *int32   `json:"topK,omitempty"`
	MinP              *float64 `json:"minP,omitempty"`
	RepetitionPenalty *float64 `json:"repetitionPenalty,omitempty"`
	// MaxTokens is the length of an answer, in tokens, whose request states none.
	MaxTokens int64 `json:"maxTokens,omitempty"`
	// LimitTokens is the length, in tokens, to which every answer is shortened.
	LimitTokens int64 `json:"limitTokens,omitempty"`
	// LimitTemperature is the temperature above which requests are refused.
	LimitTemperature *float64 `json:"limitTemperature,omitempty"`
}

// validate refuses what no request may state either.
func (p *SamplingPolicy) validate() error {
	if p == nil {
		return nil
	}
	for _, v := range []struct {
		name      string
		value     *float64
		low, high float64
	}{
		{"temperature", p.Temperature, 0, 2}, {"topP", p.TopP, 0, 1}, {"minP", p.MinP, 0, 1},
		{"repetitionPenalty", p.RepetitionPenalty, 0.01, 100}, {"limitTemperature", p.LimitTemperature, 0, 2},
	} {
		if v.value != nil && !(*v.value >= v.low && *v.value <= v.high) {
			return fmt.Errorf("engine configuration: sampling.%s is %v, want %v to %v", v.name, *v.value, v.low, v.high)
		}
	}
	if p.TopK != nil && *p.TopK < 0 || p.MaxTokens < 0 || p.LimitTokens < 0 {
		return errors.New("engine configuration: sampling has a negative topK, maxTokens or limitTokens, want 0 or more")
	}
	return nil
}

// Adapter is a low-rank adapter that is loaded with the model.
type Adapter struct {
	// Name by which requests choose it.
	Name string `json:"name"`
	// Path is its folder, in the layout of peft or of mlx-lm.
	Path string `json:"path"`
	// Digest names its weights.
	Digest string `json:"digest"`
}

// CacheModel identifies the engines that share blocks and a folder in the disk cache: those of one
// namespace with equal model, adapters and chat template. An engine that was taken over must not reach
// the blocks of others, which are of other tenants. All that have the text before the last slash in
// common share the disk as one model. Engines of earlier agents have no namespace.
func (c Config) CacheModel() string {
	var adapters []string
	for _, a := range c.Adapters {
		adapters = append(adapters, a.Digest)
	}
	slices.Sort(adapters)
	if c.Namespace != "" {
		sum := sha256.Sum256(fmt.Appendf(nil, "%q", append([]string{c.ChatTemplate}, adapters...)))
		return c.Namespace + "/" + c.ModelDigest + "/" + hex.EncodeToString(sum[:])
	}
	if len(adapters) == 0 {
		return c.ModelDigest
	}
	sum := sha256.Sum256([]byte(strings.Join(append([]string{c.ModelDigest}, adapters...), "\n")))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// MaxAdapters is how many adapters a model has at most.
const MaxAdapters = 16

// Sandbox says whether an engine gives up what it has no use for, such as the
// network, before it reads a model.
type Sandbox string

// Values of Sandbox.
const (
	// SandboxAuto confines the engine where the system can, and logs where it cannot.
	SandboxAuto Sandbox = "auto"
	// SandboxRequire refuses to start an engine that cannot be confined.
	SandboxRequire Sandbox = "require"
	SandboxOff     Sandbox = "off"
)

// Sandboxes are all values.
var Sandboxes = []Sandbox{SandboxAuto, SandboxRequire, SandboxOff}

// ReadConfig decodes and checks a configuration.
func ReadConfig(r io.Reader) (Config, error) {
	dec := json.NewDecoder(io.LimitReader(r, 1<<20))
	dec.DisallowUnknownFields()
	var c Config
	if err := dec.Decode(&c); err != nil {
		return Config{}, fmt.Errorf("read engine configuration: %w", err)
	}
	return c, c.Validate()
}

// Validate refuses what cannot be meant.
func (c Config) Validate() error {
	switch {
	case c.ReplicaUID == "":
		return errors.New("engine configuration: replicaUID is empty")
	case c.Epoch < 1:
		return fmt.Errorf("engine configuration: epoch %d, want at least 1", c.Epoch)
	case c.ModelPath == "":
		return errors.New("engine configuration: modelPath is empty")
	case c.ContextTokens < 1 || c.Sequences < 1:
		return fmt.Errorf("engine configuration: context of %d tokens for %d sequences, want at least 1 each", c.ContextTokens, c.Sequences)
	case c.CacheTokens < c.ContextTokens:
		return fmt.Errorf("engine configuration: cacheTokens %d is less than contextTokens %d", c.CacheTokens, c.ContextTokens)
	case c.LimitBytes < 1:
		return fmt.Errorf("engine configuration: limitBytes %d, want at least 1", c.LimitBytes)
	case c.CacheQueueBytes < 0:
		return fmt.Errorf("engine configuration: cacheQueueBytes %d, want 0 (no disk cache) or more", c.CacheQueueBytes)
	case c.CacheQueueBytes > 0 && c.ModelDigest == "":
		return errors.New("engine configuration: a disk cache requires modelDigest, which separates the blocks of different models")
	case c.Sandbox != "" && !slices.Contains(Sandboxes, c.Sandbox):
		return fmt.Errorf("engine configuration: sandbox %q, want auto, require or off", c.Sandbox)
	case len(c.SharedPrefixes) > 0 && c.SharedScope == "":
		return errors.New("engine configuration: sharedPrefixes require sharedScope, the namespace that shares them")
	case !slices.Contains([]string{"", "Generate", "Embed", "Rerank"}, c.Task):
		return fmt.Errorf("engine configuration: task %q, want Generate, Embed or Rerank", c.Task)
	}
	return errors.Join(c.Sampling.validate(), c.validateAdapters())
}

func (c Config) validateAdapters() error {
	if len(c.Adapters) > MaxAdapters {
		return fmt.Errorf("engine configuration: %d adapters, want at most %d", len(c.Adapters), MaxAdapters)
	}
	names := map[string]bool{}
	for _, a := range c.Adapters {
		if a.Name == "" || a.Path == "" || a.Digest == "" || names[a.Name] {
			return fmt.Errorf("engine configuration: adapter %q at %q with digest %q, want a name of its own, a path and a digest", a.Name, a.Path, a.Digest)
		}
		names[a.Name] = true
	}
	return nil
}

// Hash identifies the configuration: the hex SHA-256 of its canonical JSON.
func (c Config) Hash() string {
	b, err := json.Marshal(c)
	if err != nil {
		panic("wire: Config holds only strings, lists of them and finite numbers: " + err.Error())
	}
	sum := sha256.Sum256(bytes.TrimSpace(b))
	return hex.EncodeToString(sum[:])
}

// Dial connects to the engine of this user that listens on the Unix socket at
// path. It returns at once; the first call waits for the engine until its
// context ends.
func Dial(path string) (*grpc.ClientConn, error) {
	return NewArriving().dial(path, os.Geteuid(), nil, MaxMessageBytes)
}

// briefBytes bounds a message from an engine, many times a status, unless its call has another bound:
// it is in memory before its texts are cut.
const briefBytes = 1 << 20

// DialProcess is Dial for one process, whose id pid returns when it connects, and each time
// that it connects again: the engine may put a link to another one's socket at path. Calls that
// receive more than briefBytes need a bound of their own.
func (a *Arriving) DialProcess(path string, pid func() int) (*grpc.ClientConn, error) {
	return a.dial(path, os.Geteuid(), pid, briefBytes)
}

// dial refuses engines of other users, because prompts would be sent there, and if pid is not
// nil all other processes. A message from the engine has at most most bytes.
func (a *Arriving) dial(path string, uid int, pid func() int, most int) (*grpc.ClientConn, error) {
	conn, err := a.connect(func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, "unix", path)
		if err != nil {
			return nil, err
		}
		if err := errors.Join(checkPeer(c, uid), checkProcess(c, pid)); err != nil {
			return nil, errors.Join(err, c.Close())
		}
		return c, nil
	}, most)
	if err != nil {
		return nil, fmt.Errorf("dial engine at %s: %w", path, err)
	}
	return conn, nil
}

// connect speaks gRPC over the connections of dial.
func (a *Arriving) connect(dial func(context.Context) (net.Conn, error), most int) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///engine",
		grpc.WithTransportCredentials(insecure.NewCredentials()), // a Unix socket of this user, see OwnUser
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			c, err := dial(ctx)
			if err != nil {
				return nil, err
			}
			a.add(c)
			return impatient{c, new(answers), a}, nil
		}),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: 2 * time.Second, Backoff: quickBackoff}),
		grpc.WithMaxHeaderListSize(maxHeaderList),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(connWindow),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(most), grpc.MaxCallSendMsgSize(MaxMessageBytes), grpc.ForceCodecV2(newBounded())))
}

// tenantKey is the metadata of a call that has the tenant of its request. Tenants may have any
// characters, as only binary metadata may.
const tenantKey = "tenant-bin"

// WithTenant adds the tenant of a request to its call: the engine needs it before it receives
// the request.
func WithTenant(ctx context.Context, tenant string) context.Context {
	if tenant == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, tenantKey, tenant)
}

// Owner is the tenant of a request, or its client where there is one tenant.
func (r *GenerateRequest) Owner() string { return cmp.Or(r.GetTenant(), r.GetClient()) }

// TenantOf is the tenant of a call, at the engine; empty if there is none.
func TenantOf(ctx context.Context) string {
	if tenant := metadata.ValueFromIncomingContext(ctx, tenantKey); len(tenant) > 0 {
		return tenant[0]
	}
	return ""
}

// Refuse makes the gRPC error that carries r to the agent. It cuts the texts of r:
// gRPC sends the error in a header list, and a list that is too long ends the
// connection with all its calls.
func Refuse(r *Refusal) error {
	r = r.Bounded()
	s, err := status.New(grpcCode(r.GetCode()), r.GetMessage()).WithDetails(r)
	if err != nil {
		return status.Error(codes.Internal, r.GetMessage())
	}
	return s.Err()
}

// maxParam bounds the name of the field at fault, in bytes.
const maxParam = 256

// Bounded returns r with texts that are short enough to be sent and shown: r itself if
// they are, else a copy. nil stays nil.
func (r *Refusal) Bounded() *Refusal {
	message, param := excerpt.Message(r.GetMessage()), excerpt.Of(r.GetParam(), maxParam)
	if message == r.GetMessage() && param == r.GetParam() {
		return r
	}
	return &Refusal{
		Code: r.Code, Message: message, Param: param, UsedBytes: r.UsedBytes, NeededBytes: r.NeededBytes,
		LimitBytes: r.LimitBytes, RetryAfterMilliseconds: r.RetryAfterMilliseconds,
	}
}

// RefusalOf finds the typed refusal in an error of a call, with its texts cut; nil means
// that the engine did not say one (it died, or the connection broke).
func RefusalOf(err error) *Refusal {
	s, ok := status.FromError(err)
	if !ok {
		return nil
	}
	for _, d := range s.Details() {
		if r, ok := d.(*Refusal); ok {
			return r.Bounded()
		}
	}
	return nil
}

func grpcCode(c Code) codes.Code {
	switch c {
	case Code_CODE_INVALID, Code_CODE_CONTEXT_LENGTH:
		return codes.InvalidArgument
	case Code_CODE_MEMORY, Code_CODE_QUEUE_FULL, Code_CODE_NO_ROOM:
		return codes.ResourceExhausted
	case Code_CODE_NOT_READY:
		return codes.Unavailable
	case Code_CODE_CANCELLED, Code_CODE_ABORTED:
		return codes.Aborted
	default:
		return codes.Internal
	}
}
