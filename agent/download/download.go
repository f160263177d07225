// Package download fetches one file over https, complete and verified.
//
// It owns the client that a Mac uses for all URLs that tenants name (address
// guard, redirects, time and size limits), the resumption of interrupted
// downloads, and the check of size and SHA-256. It refuses plain http, proxies
// from the environment, compressed bodies, and every address that is not public
// unless the agent's configuration allows it. The check applies to the address
// that is dialed, so changing a DNS answer does not bypass it. The caller of
// Fetch moves the file to its final name.
//
// Every failure is an *Error with a condition reason and a sentence.
//
// Start reading at Fetcher.Fetch, then Client.Get.
package download
