package s3

import (
	"fmt"
	"net/url"
	"path"
	"regexp"
	"strings"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/hub"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Scheme begins every source in a bucket.
const Scheme = "s3://"

// defaultRegion is what a source without a region means, and what most servers
// that are compatible with S3 take.
const defaultRegion = "us-east-1"

// Source is a parsed s3:// source:
// s3://BUCKET[/PREFIX][?endpoint=https://HOST][&region=REGION][&use_path_style=true].
type Source struct {
	Bucket string
	// Prefix is the folder that the model lies in, or the key of a .gguf file;
	// empty means the whole bucket.
	Prefix string
	Region string
	// endpoint is the server of the buckets, and pathStyle is true if the bucket
	// is part of the path instead of the host name.
	endpoint  *url.URL
	pathStyle bool
}

var (
	bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)
	regionName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)
)

// Parse reads a source.
func Parse(source string) (Source, error) {
	rest, ok := strings.CutPrefix(source, Scheme)
	if !ok {
		return Source{}, fail("the source does not start with %s", Scheme)
	}
	where, query, _ := strings.Cut(rest, "?")
	bucket, prefix, _ := strings.Cut(where, "/")
	if strings.Contains(rest, "#") || !bucketName.MatchString(bucket) || strings.Contains(bucket, "..") {
		return Source{}, fail("the source has no valid bucket; write s3://BUCKET/PREFIX with special characters percent-encoded")
	}
	plain, err := url.PathUnescape(strings.Trim(prefix, "/"))
	if err != nil || plain != "" && !hub.CleanPath(plain) {
		return Source{}, fail("the source's prefix %.64q is not a valid folder; write it without . and .. and with special characters percent-encoded", prefix)
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return Source{}, fail("cannot parse the parameters after ? in the source; write endpoint=https://HOST&region=REGION")
	}
	s := Source{Bucket: bucket, Prefix: plain, Region: defaultRegion}
	for name, v := range values {
		if len(v) != 1 {
			return Source{}, fail("the source sets %.32q more than once; keep one", name)
		}
		if err := s.set(name, v[0]); err != nil {
			return Source{}, err
		}
	}
	return s, s.locate(values.Has("use_path_style"))
}

// set takes a parameter, by the names that Go CDK has for them.
func (s *Source) set(name, value string) error {
	switch name {
	case "region":
		if s.Region = value; !regionName.MatchString(value) {
			return fail("%.64q is not a valid region; write one such as eu-central-1", value)
		}
	case "endpoint":
		u, err := url.Parse(value)
		if err != nil || download.CheckURL(u) != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "" {
			return fail("%.128q is not a valid endpoint; write https://HOST, optionally with a port", value)
		}
		s.endpoint = &url.URL{Scheme: u.Scheme, Host: u.Host}
	case "use_path_style":
		if s.pathStyle = value == "true"; value != "true" && value != "false" {
			return fail("use_path_style is %.32q; write true or false", value)
		}
	default:
		return fail("unknown parameter %.32q in the source; use endpoint, region or use_path_style", name)
	}
	return nil
}

// locate sets what the source does not say: Amazon's endpoint of the region,
// and whether the bucket is part of the path. It is for others' endpoints, and
// for names with dots, for which no certificate of Amazon's is good.
func (s *Source) locate(styled bool) error {
	if !styled {
		s.pathStyle = s.endpoint != nil || strings.Contains(s.Bucket, ".")
	}
	if s.endpoint == nil {
		s.endpoint = &url.URL{Scheme: "https", Host: "s3." + s.Region + ".amazonaws.com"}
	}
	return nil
}

// isFile reports whether the source is one file and not a folder.
func (s Source) isFile() bool { return strings.HasSuffix(s.Prefix, ".gguf") }

// Key is that of one of the model's files.
func (s Source) Key(file string) string {
	if s.isFile() {
		return s.Prefix
	}
	return path.Join(s.Prefix, file)
}

// URL is the address of one of the model's files.
func (s Source) URL(file string) string { return s.at(s.Key(file)).String() }

// at is the address of a key, or of the bucket.
func (s Source) at(key string) *url.URL {
	u := *s.endpoint
	u.Path = "/" + key
	if s.pathStyle {
		u.Path = "/" + s.Bucket + "/" + key
	} else {
		u.Host = s.Bucket + "." + u.Host
	}
	u.RawPath = escape(u.Path)
	return &u
}

// escape writes a path as S3's signatures want it: all but letters, digits and
// - . _ ~ / in hex.
func escape(p string) string {
	var b strings.Builder
	for i := range len(p) {
		c := p[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~/", c) >= 0 {
			b.WriteByte(c)
			continue
		}
		fmt.Fprintf(&b, "%%%02X", c)
	}
	return b.String()
}

func fail(format string, args ...any) *download.Error {
	return &download.Error{Reason: v1alpha1.ReasonSourceForbidden, Message: fmt.Sprintf(format, args...)}
}
