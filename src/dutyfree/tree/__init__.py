"""Trees of files from somebody hostile: write and delete below one directory, read and write tar."""
