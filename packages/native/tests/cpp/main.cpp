// The test program. As a child process, it runs a node or a scenario.

#include "stage.hpp"

int run_node(const std::vector<std::string>& options);

int main(int count, char** arguments) {
    // No node or setting of the user takes part in the tests.
    for (const char* name : {"HOPLITE_ADDRESS", "HOPLITE_CONFIG", "HOPLITE_JOB", "HOPLITE_CAPABILITY", "HOPLITE_DIGEST",
                             "HOPLITE_TOKEN", "HOPLITE_JOIN", "HOPLITE_CLUSTER", "HOPLITE_CAPACITY", "SLURM_JOB_ID"}) {
        unsetenv(name);
    }
    setenv("HOPLITE_TOPOLOGY", "off", 1);
    const std::vector<std::string> words(arguments + 1, arguments + count);
    if (!words.empty() && words[0] == "--node") return run_node({words.begin() + 1, words.end()});
    setenv("XDG_RUNTIME_DIR", directory().c_str(), 1);
    int code = 0;
    if (words.size() == 2 && words[0] == "--scenario") {
        code = run_scenario(words[1]);
    } else {
        testing::InitGoogleTest(&count, arguments);
        code = RUN_ALL_TESTS();
        Stage::close();
    }
    std::error_code ignored;
    std::filesystem::remove_all(directory(), ignored);
    return code;
}
