// Package cloud brings model repositories of s3://, gs:// and as:// to a folder of this
// machine, and keeps them there. gateway/repository asks a Store before it lists a
// repository; the buckets are opened by cloud/drivers, which cmd hands in, so that
// nothing else links the clouds' libraries.
//
// A cache folder holds
//
//	objects/<ab>/<sha256>           what was fetched, by its content; read-only
//	repositories/<name>-<hash>/     one repository, of one server at a time (lock)
//	    manifest.json               which objects a model consists of, and their versions
//	    trees/<id>/                 a model's folder: hard links to objects
//	    view/<model>                a symbolic link to the model's tree: what is served
//	    tmp/                        what is being fetched or built
//
// Everything is written under tmp, synced and renamed, so a view holds whole models
// alone. A model is fetched object by object: those whose version (ETag, generation,
// MD5) is that of the manifest are taken from the cache, the first time after their
// bytes were compared with their name. A tree is never changed; a model that has changed
// gets a new one, and its link is replaced.
//
// A Store may be used by any number of goroutines; it works on one repository at a time
// for each of them. Locks: repository.busy before objects.mu; Store.mu alone.
package cloud
