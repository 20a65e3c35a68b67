// What a client of NFS remembers, and may answer for stale_ms although another client has changed
// it: that a name does not exist (also to open), the attributes of a name, and the names of a
// folder. The data of a file that is opened is always fresh (close-to-open consistency), and so is
// all that the client's own processes change, and what follows a listing of the folder.
//
// As seen with Linux 6.1 and NFS 4.2: 30 s for a name that did not exist, 3 s for attributes and
// targets of links; listings are always fresh (so chaos.py leaves stale listings out). Two clients
// that append to one file overwrite each other's lines, or leave zeros in their place; flock()
// holds across clients. Not imitated: the zeros; the files of a folder that was replaced by rename,
// which for 30 s are those of the old folder.
#pragma once

#include <dirent.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "faults.hpp"

namespace file_faults {

/// A process of this client has added, removed, replaced or touched the name.
void changed(const Path& path);

/// True if the answer "no such file" of up to stale_ms ago is repeated.
bool still_missing(Call call, const Path& path);
/// Remembers the answer of open or stat.
void answered(const Path& path, bool missing);

/// The client knows the size of the file now: it has opened it.
void remember_size(int fd);
/// write() to a file that was opened with O_APPEND. With the probability of Effect::overwrite the
/// client does not know what other clients have appended meanwhile.
ssize_t append(int fd, const Path& path, const void* data, size_t bytes);

/// Replaces a fresh result of stat by the remembered one, at the probability of Effect::stale, or
/// remembers the fresh one. `kind` tells the calls apart that follow links from those that do not.
void attributes(const Path& path, int kind, struct stat& fresh);

/// A folder was opened for listing: chooses whether new names are hidden from the reader.
void listing_begins(DIR* stream, const Path& path);
/// True if this entry must be left out.
bool hidden(DIR* stream, const char* name);
void listing_ends(DIR* stream);

}  // namespace file_faults
